"""Estimates of memory and speed of a model, which must agree with the engine."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine import Model
from engine.cache.kv_cache import kv_type_of, memory_needs
from engine.cache.layer_memory import MemoryNeeds
from engine.errors import EngineError, GGUFError, UnsupportedArchitectureError
from engine.measure import fit
from engine.measure.fit import MachineMemory, MachineRates, ModelNeeds
from engine.weights.modes import RESERVE_BYTES
from tests.engine import tiny_gguf

GIB = 1 << 30
NEEDS = ModelNeeds(
    name="8B",
    quantization="Q4_K_M",
    weights_bytes=5_000_000_000,
    read_bytes={"Q4_K": 3_000_000_000, "Q6_K": 1_000_000_000},
    products={"Q4_K": 6_000_000_000, "Q6_K": 1_000_000_000},
    memory=MemoryNeeds(131_072),
    context_length=131_072,
    n_layers=32,
)
RATES = MachineRates(20.0, {"Q4_K": 15.0, "Q6_K": 20.0}, {"Q4_K": 100.0, "Q6_K": 50.0})
ROOMY = MachineMemory(32 * GIB, 30 * GIB)


@pytest.mark.parametrize("tied", [True, False])
def test_needs_from_the_header_equal_those_of_the_opened_model(tmp_path: Path, tied: bool) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", quant="Q8_0", tied=tied)
    needs = fit.needs_of_file(path, "f32")
    model = Model.open(path, threads=1)
    assert needs.weights_bytes == model.weights_bytes
    assert needs.bytes_per_token == pytest.approx(model.bytes_per_token, abs=model.config.dim * 4)
    assert needs.memory == memory_needs(model.config, kv_type_of("f32", model.config))
    assert (needs.quantization, needs.context_length) == (
        model.quantization,
        model.config.context_length,
    )
    matrices = [
        tensor for tensor in model._weights.tensors.values() if tensor.name.startswith("blk.")
    ]
    assert sum(needs.products.values()) == sum(
        t.n_rows * t.n_cols for t in matrices if t.n_rows > 1
    )
    model.close()


def test_a_file_that_the_engine_would_refuse_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(tiny_gguf.build()[:1000])
    with pytest.raises(GGUFError):
        fit.needs_of_file(file)
    described = tiny_gguf.model()
    described.set("general.architecture", "gemma9")
    with pytest.raises(UnsupportedArchitectureError):
        fit.needs_of_file(described.write(file))


def test_headers_that_opening_refuses_are_refused_early(tmp_path: Path) -> None:
    """Newer Mistral files have the layers of llama but another vocabulary; other files have tensors
    that llama lacks."""
    unknown_words = tiny_gguf.model(vocabulary="bpe")
    more_tensors = tiny_gguf.model()
    unknown_words.set("tokenizer.ggml.pre", "pieces")
    more_tensors.tensors.append(
        replace(more_tensors.tensor("output_norm.weight"), name="blk.0.attn_q_norm.weight")
    )
    less_tensors = tiny_gguf.model()
    less_tensors.drop_tensor("blk.1.ffn_up.weight")
    for tiny, message in (
        (unknown_words, "pieces"),
        (more_tensors, "attn_q_norm"),
        (less_tensors, "ffn_up"),
    ):
        path = tiny.write(tmp_path / "m.gguf")
        for refuse in (fit.needs_of_file, Model.open):
            with pytest.raises(EngineError, match=message):
                refuse(path)


def test_shapes_padded_with_ones_give_the_same_needs(tmp_path: Path) -> None:
    tiny = tiny_gguf.model(hidden_dim=32)
    plain = fit.needs_of_file(tiny.write(tmp_path / "model.gguf"))
    for tensor in tiny.tensors:
        tensor.dims = [*tensor.dims, 1]
    path = tiny.write(tmp_path / "model.gguf")
    Model.open(path, threads=1).close()
    assert fit.needs_of_file(path) == plain


def test_a_file_without_layers_is_refused(tmp_path: Path) -> None:
    described = tiny_gguf.model()
    for entry in [tensor.name for tensor in described.tensors if tensor.name.startswith("blk.")]:
        described.drop_tensor(entry)
    with pytest.raises(EngineError, match="no layers"):
        fit.needs_of_file(described.write(tmp_path / "m.gguf"))


def test_memory_is_the_sum_of_weights_cache_and_program() -> None:
    answer = fit.fit(NEEDS, ROOMY, RATES, 4096)
    assert answer.kv_bytes == 4096 * 131_072
    assert answer.needed_bytes == 5_000_000_000 + 4096 * 131_072 + RESERVE_BYTES
    assert answer.verdict == "yes"


def test_an_encoder_of_pictures_needs_memory_too() -> None:
    seeing = replace(NEEDS, encoder_bytes=4 * GIB)
    blind_fit, seeing_fit = (fit.fit(needs, ROOMY, RATES, 4096) for needs in (NEEDS, seeing))
    assert seeing_fit.needed_bytes == blind_fit.needed_bytes + 4 * GIB
    assert seeing_fit.encoder_bytes == 4 * GIB
    available = 12 * GIB
    largest = fit.largest_context(NEEDS, available)
    assert fit.largest_context(seeing, available + 4 * GIB) == largest
    assert fit.largest_context(seeing, available) < largest


def test_each_token_reads_and_writes_states_but_not_their_copies() -> None:
    plain, states = (MemoryNeeds(131_072, GIB, state_bytes=n) for n in (0, 50_000_000))
    without_states, with_states = (
        fit.fit(replace(NEEDS, memory=memory), ROOMY, RATES, 4096) for memory in (plain, states)
    )
    assert without_states.decode_tps == fit.fit(NEEDS, ROOMY, RATES, 4096).decode_tps
    assert None not in (
        with_states.decode_tps,
        without_states.decode_tps,
        with_states.decode_full_tps,
        without_states.decode_full_tps,
    )
    assert RATES.read_gbps is not None
    more_s = 100_000_000 / (fit.DECODE_SHARE * RATES.read_gbps) / 1e9
    assert 1 / with_states.decode_tps == pytest.approx(1 / without_states.decode_tps + more_s)
    assert 1 / with_states.decode_full_tps == pytest.approx(
        1 / without_states.decode_full_tps + more_s
    )


def test_states_that_do_not_depend_on_the_context_count_too() -> None:
    fixed = replace(NEEDS, memory=MemoryNeeds(131_072, GIB))
    assert fit.fit(fixed, ROOMY, RATES, 4096).kv_bytes == 4096 * 131_072 + GIB
    assert fit.largest_context(fixed, 8 * GIB) == fit.largest_context(NEEDS, 7 * GIB)


@pytest.mark.parametrize(
    ("total_gib", "available_gib", "verdict"),
    [(32, 30, "yes"), (8, 4, "tight"), (4, 3, "no"), (6, 5.9, "no")],
)
def test_the_verdict_distinguishes_fitting_now_and_fitting_alone(
    total_gib: int, available_gib: float, verdict: str
) -> None:
    memory = MachineMemory(total_gib * GIB, int(available_gib * GIB))
    assert fit.fit(NEEDS, memory, RATES, 8192).verdict == verdict


def test_the_largest_context_just_fits_and_no_block_more() -> None:
    available = 7 * GIB
    n_ctx = fit.largest_context(NEEDS, available)
    assert n_ctx % 8 == 0
    assert NEEDS.weights_bytes + RESERVE_BYTES + n_ctx * 131_072 <= available
    assert NEEDS.weights_bytes + RESERVE_BYTES + (n_ctx + 8) * 131_072 > available


def test_largest_context_is_at_most_trained_or_0_without_room() -> None:
    assert fit.largest_context(replace(NEEDS, context_length=2048), 30 * GIB) == 2048
    assert fit.largest_context(NEEDS, 5_100_000_000) == 0


def test_a_token_takes_the_time_of_each_types_bytes() -> None:
    answer = fit.fit(NEEDS, ROOMY, RATES, 4096)
    seconds = (3e9 / 15e9 + 1e9 / 20e9) * fit.OTHER_DECODE_WORK + 32 * fit.LAYER_S
    assert answer.decode_tps == pytest.approx(1 / seconds)
    assert answer.prefill_tps == pytest.approx(
        1 / ((6e9 / 100e9 + 1e9 / 50e9) * fit.OTHER_PREFILL_WORK)
    )
    assert answer.is_measured
    assert answer.decode_full_tps is not None
    assert answer.decode_full_tps < answer.decode_tps


def test_assumed_speeds_are_marked_as_such() -> None:
    assumed = fit.fit(NEEDS, ROOMY, MachineRates(20.0), 4096)
    assert not assumed.is_measured
    assert assumed.decode_tps == pytest.approx(
        1 / (4e9 / (fit.DECODE_SHARE * 20e9) * fit.OTHER_DECODE_WORK + 32 * fit.LAYER_S)
    )
    assert assumed.prefill_tps is None
    nothing = fit.fit(NEEDS, ROOMY, MachineRates())
    assert (nothing.decode_tps, nothing.decode_full_tps, nothing.prefill_tps) == (None, None, None)


def test_total_memory_is_at_least_the_available_memory() -> None:
    memory = fit.machine_memory()
    assert 0 < memory.available_bytes <= memory.total_bytes

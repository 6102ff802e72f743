"""Adapters: the same logits as the model that has them merged in, and refusals of files that are
none for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model, Session
from engine.adapters import _LATENT_MATRICES
from engine.errors import EngineError
from engine.models import expected_tensors
from engine.saved_state import StateWriter, restore_state
from engine.tuning.lookahead_trials import _matrices as matrices_of
from tests.engine import tiny_gguf
from tests.engine.architectures import KINDS
from tests.engine.test_batch import N_CTX, PROMPTS, fed_alone, fed_together, peers
from tests.engine.test_models import IDS, nmse
from tests.engine.test_scales import add_scales
from tests.engine.tiny_adapters import adapter, merged
from tests.engine.tiny_gguf import TinyGGUF

Change = Callable[[TinyGGUF], Any]
QUERY = "blk.0.attn_q.weight"


def matrices(tiny: TinyGGUF, model: Model) -> list[str]:
    """Return the names of the matrices that an adapter may change."""
    names = {str(tensor.name) for tensor in tiny.tensors}
    specs = expected_tensors(model.config)
    matrix_names = [name for name in specs if name in names and not name.endswith(_LATENT_MATRICES)]
    return [name for name in matrix_names if not specs[name].is_plain]


def logits_of(session: Session) -> np.ndarray:
    """Return a session's logits of tokens in a block, one by one, and in a small batch."""
    session.truncate(0)
    rows = [session.feed(IDS, all_logits=True)]
    session.truncate(0)
    rows += [session.feed([token])[None] for token in IDS[:4]]
    session.prefill(IDS)
    return np.concatenate([*rows, session.verify(IDS[:3])])


def adapted(path: Path, lora: TinyGGUF, scale: float = 1.0) -> Model:
    model = Model.open(path, threads=2)
    model.use_adapters([(lora.write(path.with_suffix(".lora")), scale)])
    return model


def logits_merged(tiny: TinyGGUF, lora: TinyGGUF, tmp_path: Path) -> np.ndarray:
    """Return the logits of the model with the adapter merged in."""
    model = Model.open(merged(tiny, lora, 0.7).write(tmp_path / "merged.gguf"), threads=1)
    rows = logits_of(model.session(n_ctx=64, kv="f32"))
    model.close()
    return rows


def assert_equals_merged(tiny: TinyGGUF, names: list[str], tmp_path: Path, **options: Any) -> None:
    """Compare the logits of a model and its adapter with those of the merged model."""
    lora = adapter(tiny, names, **options)
    model = adapted(tiny.write(tmp_path / "m.gguf"), lora, 0.7)
    assert (
        nmse(logits_of(model.session(n_ctx=64, kv="f32")), logits_merged(tiny, lora, tmp_path))
        < 1e-9
    )
    model.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", [*KINDS, "falcon", "glm4moe", "hunyuan-dense", "phimoe", "qwen2", "seed_oss"]
)
def test_an_adapter_on_all_matrices_equals_the_merged_model(
    architecture: str, tmp_path: Path
) -> None:
    """Cover all ways in which layers are composed; the other architectures add no code to these."""
    tiny = tiny_gguf.model(architecture)
    model = Model.open(tiny.write(tmp_path / "m.gguf"), threads=1)
    session = model.session(n_ctx=64, kv="f32")
    original = logits_of(session)
    lora = adapter(tiny, matrices(tiny, model))
    model.use_adapters([(lora.write(tmp_path / "m.lora"), 0.7)])
    assert session.tokens == []
    changed = logits_of(session)
    expected = logits_merged(tiny, lora, tmp_path)
    assert nmse(original, expected) > 0.01
    assert nmse(changed, expected) < 1e-9
    model.use_adapters([])
    assert logits_of(session).tobytes() == original.tobytes()
    model.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quant", "rank"), [("F32", 5), ("F16", 4), ("BF16", 16), ("Q8_0", 32), ("F32", 40)]
)
def test_adapters_of_all_types_and_ranks_equal_the_merged(
    quant: str, rank: int, tmp_path: Path
) -> None:
    tiny = tiny_gguf.model("llama", tied=True)
    names = [str(tensor.name) for tensor in tiny.tensors if "norm" not in str(tensor.name)]
    assert_equals_merged(tiny, names, tmp_path, quant=quant, rank=rank)


@pytest.mark.slow
def test_scales_of_matrices_leave_adapters_as_they_are(tmp_path: Path) -> None:
    tiny = add_scales(tiny_gguf.model("qwen3moe"), are_applied=False)
    names = [
        str(tensor.name)
        for tensor in tiny.tensors
        if str(tensor.name).endswith(("_exps.weight", "attn_output.weight"))
    ]
    assert_equals_merged(tiny, names, tmp_path)


@pytest.mark.smoke
@pytest.mark.slow
def test_adapters_add_up_in_every_mode_of_the_weights(tmp_path: Path) -> None:
    tiny = tiny_gguf.model("llama")
    path = tiny.write(tmp_path / "m.gguf")
    names = [QUERY, "blk.1.ffn_down.weight", "output.weight"]
    first = adapter(tiny, names)
    second = adapter(tiny, names[1:], rank=7, seed=2)
    chosen = [(first.write(tmp_path / "1.gguf"), 1.0), (second.write(tmp_path / "2.gguf"), -0.5)]
    model = Model.open(path, threads=2)
    session = model.session(n_ctx=64, kv="f32")
    original = matrices_of(session)
    session.profiler.start()
    model.use_adapters(chosen)
    assert matrices_of(session) == original
    merged_file = merged(merged(tiny, first), second, -0.5)
    merged_model = Model.open(merged_file.write(tmp_path / "merged.gguf"), threads=2)
    expected = logits_of(merged_model.session(n_ctx=64, kv="f32"))
    adapted_logits = logits_of(session)
    assert nmse(adapted_logits, expected) < 1e-9
    assert sum(phase.seconds for phase in session.profiler.stop()["decode"]) > 0
    model.use_weights("huge")
    assert logits_of(session).tobytes() == adapted_logits.tobytes()
    model.use_adapters(chosen[:1])
    model.use_weights("mmap")
    model.use_adapters(chosen)
    assert logits_of(session).tobytes() == adapted_logits.tobytes()
    for opened in (model, merged_model):
        opened.close()


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["phi3", "qwen3moe", "lfm2"])
def test_with_adapters_threads_blocks_and_peers_change_no_bit(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # so that all are in every step, however busy the machine is
    monkeypatch.setattr("engine.batch.PATIENCE", 1e6)
    tiny = tiny_gguf.model(architecture, "Q8_0")
    path = tiny.write(tmp_path / "m.gguf")
    blocks = []
    rows = []
    for threads in (1, 3):
        model = Model.open(path, threads=threads)
        lora = adapter(tiny, matrices(tiny, model), quant="F16")
        session = model.session(n_ctx=N_CTX)
        model.use_adapters([(lora.write(tmp_path / "a.gguf"), 1.0)])
        blocks.append(session.feed(IDS, all_logits=True)[-1])
        single = np.stack([session.feed([token]) for token in IDS[:4]])
        session.truncate(0)
        blocks.append(session.feed(IDS))
        rows += [single, session.verify(IDS[:4])]
        alone = [fed_alone(session, prompt) for prompt in PROMPTS]
        session.close()
        assert fed_together(peers(model, 4), PROMPTS) == alone
        model.close()
    assert all(logits.tobytes() == blocks[0].tobytes() for logits in blocks)
    assert all(logits.tobytes() == rows[0].tobytes() for logits in rows)


@pytest.mark.slow
def test_states_of_other_adapters_or_scales_are_not_used(tmp_path: Path) -> None:
    tiny = tiny_gguf.model()
    folder = tmp_path / "states"
    lora = adapter(tiny, [QUERY])
    model = adapted(tiny.write(tmp_path / "m.gguf"), lora)
    session = model.session(n_ctx=128)
    ids = (IDS * 6)[:90]
    session.prefill(ids)
    saving = StateWriter(session, folder)
    assert saving.flush(60), saving.problem
    saving.close()
    prints = [model.fingerprint]
    for chosen in ([], [(tmp_path / "m.lora", 0.5)], [(tmp_path / "m.lora", 1.0)] * 2):
        model.use_adapters(chosen)
        prints.append(model.fingerprint)
        assert restore_state(session, folder, ids).tokens == 0
    assert len(set(prints)) == len(prints)
    model.use_adapters([(tmp_path / "m.lora", 1.0)])
    assert restore_state(session, folder, ids).tokens == 90
    model.close()


def _lied(name: str, dims: list[int]) -> Change:
    def change(lora: TinyGGUF) -> None:
        tensor = lora.tensor(name)
        tensor.data = bytes(4 * int(np.prod(dims)))
        tensor.dims = dims

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lora: lora.set("general.type", "model"), "general.type is 'model', not 'adapter'"),
        (lambda lora: lora.drop("general.type"), "general.type is 'None', not 'adapter'"),
        (
            lambda lora: lora.set("general.architecture", "qwen2"),
            "is for models of 'qwen2', not of 'llama'",
        ),
        (
            lambda lora: lora.set("adapter.type", "lo\x1bha"),
            r"adapter.type is 'lo\x1bha': only 'lora'",
        ),
        (
            lambda lora: lora.set("adapter.lora.alpha", float("nan")),
            "adapter.lora.alpha is nan: must be finite",
        ),
        (
            lambda lora: lora.set("adapter.lora.alpha", "8"),
            "adapter.lora.alpha is a string: must be a number",
        ),
        (lambda lora: lora.fill(QUERY + ".lora_b", 3e38), "lora_b holds too large numbers"),
        (
            lambda lora: lora.set("adapter.alora.invocation_tokens", np.array([1], "<u4")),
            "activated LoRA",
        ),
        (lambda lora: lora.tensors.clear(), "has no tensors: it changes nothing"),
        (lambda lora: lora.drop_tensor(QUERY + ".lora_b"), f"tensor {QUERY}.lora_b is missing"),
        (
            lambda lora: lora.rename("attn_q", "attn_z"),
            "changes blk.0.attn_z.weight, which the model lacks",
        ),
        (
            lambda lora: lora.rename(".lora_a", ".lora_c"),
            f"tensor {QUERY}.lora_c is no factor of an adapter",
        ),
        (
            lambda lora: lora.rename("blk.0.attn_q", "output_norm"),
            "output_norm.weight, which adapters cannot change",
        ),
        (
            _lied(QUERY + ".lora_a", [32, 4]),
            f"factors of 4 x 32 and 64 x 4 do not fit {QUERY} of 64 x 64",
        ),
        (
            _lied(QUERY + ".lora_b", [5, 64]),
            f"factors of 4 x 64 and 64 x 5 do not fit {QUERY} of 64 x 64",
        ),
        (_lied(QUERY + ".lora_a", [64, 4, 2]), "do not fit"),
        (_lied(QUERY + ".lora_b", [0, 64]), "dimension 0 of 0"),
        (
            lambda lora: lora.fill(QUERY + ".lora_a", float("nan")),
            f"tensor {QUERY}.lora_a holds NaN",
        ),
        (
            lambda lora: lora.fill(QUERY + ".lora_b", float("-inf")),
            f"tensor {QUERY}.lora_b holds NaN",
        ),
    ],
)
def test_what_is_no_adapter_of_the_model_is_refused(
    change: Change, message: str, tmp_path: Path
) -> None:
    tiny = tiny_gguf.model()
    lora = adapter(tiny, [QUERY])
    change(lora)
    model = Model.open(tiny.write(tmp_path / "m.gguf"), threads=1)
    fingerprint = model.fingerprint
    with pytest.raises(EngineError) as error:
        model.use_adapters([(lora.write(tmp_path / "a.gguf"), 1.0)])
    line = str(error.value)
    assert message in line
    assert line.isprintable()
    assert line.count("a.gguf") == 1
    assert model.fingerprint == fingerprint
    model.close()


def test_what_latent_attention_takes_apart_is_not_changed(tmp_path: Path) -> None:
    tiny = tiny_gguf.model("deepseek2")
    model = Model.open(tiny.write(tmp_path / "m.gguf"), threads=1)
    names = [
        str(tensor.name) for tensor in tiny.tensors if str(tensor.name).endswith(_LATENT_MATRICES)
    ]
    assert names
    for name in names:
        with pytest.raises(EngineError, match=f"changes {name}, which adapters cannot change here"):
            model.use_adapters([(adapter(tiny, [name]).write(tmp_path / "a.gguf"), 1.0)])
    model.close()


@pytest.mark.parametrize(
    ("rank", "n_times", "message"), [(5000, 1, "a rank of 5000"), (2100, 2, "a rank of 4200")]
)
def test_ranks_are_bounded(rank: int, n_times: int, message: str, tmp_path: Path) -> None:
    tiny = tiny_gguf.model(n_layers=1)
    lora = adapter(tiny, [QUERY], rank=rank).write(tmp_path / "a.gguf")
    model = Model.open(tiny.write(tmp_path / "m.gguf"), threads=1)
    with pytest.raises(EngineError, match=f"{message}.*: must be at most 4096"):
        model.use_adapters([(lora, 1.0)] * n_times)
    model.close()


def test_norms_in_an_adapter_are_told_and_left_out(tmp_path: Path) -> None:
    tiny = tiny_gguf.model(n_layers=1)
    lora = adapter(tiny, [QUERY])
    lora.add_vector("blk.0.attn_norm.weight", np.ones(64))
    model = adapted(tiny.write(tmp_path / "m.gguf"), lora)
    assert "m.lora: no use is made of its 1 norms" in model.notices
    model.close()


@pytest.mark.parametrize(("scale", "reason"), [(0.0, "its scale is 0"), (1.0, "its factors are 0")])
def test_an_adapter_without_effect_is_told(scale: float, reason: str, tmp_path: Path) -> None:
    tiny = tiny_gguf.model(n_layers=1)
    lora = adapter(tiny, [QUERY])
    if scale:
        second = lora.tensor(f"{QUERY}.lora_b")
        second.data = bytes(len(second.data))
    model = adapted(tiny.write(tmp_path / "m.gguf"), lora, scale)
    assert f"m.lora: has no effect: {reason}" in model.notices
    model.close()


def test_a_token_reads_an_adapter_too(tmp_path: Path) -> None:
    tiny = tiny_gguf.model()
    model = Model.open(tiny.write(tmp_path / "m.gguf"), threads=1)
    original = model.bytes_per_token
    lora = adapter(tiny, [QUERY, "token_embd.weight"], quant="F16")
    model.use_adapters([(lora.write(tmp_path / "a.gguf"), 1.0)])
    assert model.bytes_per_token - original == 2 * 4 * (64 + 64)
    model.close()

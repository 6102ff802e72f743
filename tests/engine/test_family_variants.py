"""Optional parts of a family's files, positions, and refusals."""

from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from engine import Model
from engine.cache.kv_cache import memory_needs
from engine.cache.kv_types import KV_TYPES
from engine.config import DeltaNet, Xielu
from engine.errors import EngineError
from engine.saved_state import StateWriter, restore_state
from tests.engine import tiny_gguf
from tests.engine.architectures.rows import PARAMETERS, ROWS, VARIANTS, Change, varied, without
from tests.engine.reference import Array, Twin
from tests.engine.refusals import refusal
from tests.engine.test_config import config_of
from tests.engine.test_models import IDS, assert_equals_twin, nmse, twin_logits
from tests.programs.engine.second_turn import N_OPENING, second_turn

pytestmark = pytest.mark.slow


@cache
def plain_logits(name: str) -> Array:
    """Return the logits of an architecture's plain twin."""
    with (
        TemporaryDirectory() as folder,
        closing(Model.open(ROWS[name].tiny().write(Path(folder) / "m.gguf"))) as model,
    ):
        return ROWS[name].logits(Twin(model._file), IDS)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_some_files_of_a_family_have_counts_as_in_the_twin(
    variant: str, tmp_path: Path
) -> None:
    row = VARIANTS[variant]
    expected = assert_equals_twin(
        row.tiny(), row.logits, tmp_path, 1e-8 if row.arguments.get("n_layers", 0) > 40 else 1e-9
    )
    distance = nmse(plain_logits(row.name), expected)
    assert distance < 1e-12 if row.is_same else distance > 1e-6, "the variant makes no difference"


@pytest.mark.parametrize(
    "variant", ["qwen35", "granitehybrid, 1 groups, heads of 8, no rope", "granitehybrid"]
)
def test_a_long_prompt_equals_the_recurrence_step_by_step(variant: str, tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 200, 300).tolist()
    row = {**ROWS, **VARIANTS}[variant]
    model = Model.open(row.tiny(context_length=512).write(tmp_path / "m.gguf"), threads=3)
    logits = model.session(n_ctx=512, kv="f32").feed(ids, all_logits=True)
    assert nmse(logits, row.logits(Twin(model._file), ids)) < 1e-9
    model.close()


@pytest.mark.parametrize(("window", "n"), [(1, 40), (24, 600), (300, 700), (513, 700)])
def test_windows_across_tiles_and_chunks_equal_the_numpy_twin(
    window: int, n: int, tmp_path: Path
) -> None:
    ids = np.random.default_rng(1).integers(0, 200, n).tolist()
    described = tiny_gguf.model("gemma3", context_length=1024)
    described.set("gemma3.attention.sliding_window", window)
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=2)
    expected = twin_logits(model, ids)
    session = model.session(n_ctx=768, kv="f32")
    assert nmse(session.feed(ids, all_logits=True), expected) < 1e-9
    session.truncate(n - 4)
    assert nmse(np.stack([session.feed([token]) for token in ids[-4:]]), expected[-4:]) < 1e-9
    model.close()


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["phi3", "phimoe"])
def test_the_sessions_context_chooses_the_factors(name: str, tmp_path: Path) -> None:
    row = VARIANTS[f"{name} with longrope"]
    model = Model.open(row.tiny().write(tmp_path / "m.gguf"))
    for n_ctx, length, unused_length in ((64, "short", "long"), (65, "long", "short")):
        logits = model.session(n_ctx=n_ctx, kv="f32").feed(IDS, all_logits=True)
        assert nmse(logits, row.logits(Twin(model._file), IDS, length)) < 1e-9
        assert nmse(logits, row.logits(Twin(model._file), IDS, unused_length)) > 1e-5
    model.close()


def test_parameters_of_any_size_keep_their_values(tmp_path: Path) -> None:
    row = varied(
        "apertus", keys={f"xielu.{name}": np.array([3000.0, -3000.0], "<f4") for name in PARAMETERS}
    )
    config = config_of(row.tiny().write(tmp_path / "m.gguf"))
    expected = Xielu(3000.0, 6000.0, 3000.0, 3000.0), Xielu(0.0, -3000.0, -3000.0, -3000.0)
    assert tuple(layer.feed_forward.xielu for layer in config.layers) == expected


def test_recurrent_layers_are_those_of_the_list_or_interval(tmp_path: Path) -> None:
    described = tiny_gguf.model("qwen35", n_layers=5)
    path = tmp_path / "m.gguf"
    config = config_of(described.write(path))
    assert config.recurrents == {1: DeltaNet(2, 4, 32, 4), 3: DeltaNet(2, 4, 32, 4)}
    described.drop("qwen35.attention.recurrent_layers")
    assert list(config_of(described.write(path)).attentions) == [3]
    described.set("qwen35.full_attention_interval", 2)
    assert list(config_of(described.write(path)).attentions) == [1, 3]


def test_what_predicts_further_tokens_is_left_alone(tmp_path: Path) -> None:
    described = tiny_gguf.model("qwen35")
    plain = Model.open(described.write(tmp_path / "plain.gguf"), threads=1)
    described.set("qwen35.block_count", 3)
    described.set("qwen35.nextn_predict_layers", 1)
    described.set("qwen35.attention.recurrent_layers", np.array([False, True, False]))
    described.add_vector("blk.2.nextn.enorm.weight", np.ones(64))
    described.add_rows("blk.2.nextn.eh_proj.weight", np.ones((64, 128)))
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=1)
    assert (model.weights_bytes, model.bytes_per_token) == (
        plain.weights_bytes,
        plain.bytes_per_token,
    )
    logits, expected = (tiny.session(n_ctx=64).feed(IDS) for tiny in (model, plain))
    assert logits.tobytes() == expected.tobytes()
    model.close()
    plain.close()
    described.add_vector("blk.3.attn_norm.weight", np.ones(64))
    assert "blk.3.attn_norm.weight is beyond qwen35.block_count 3" in refusal(
        described.write(tmp_path / "model.gguf")
    )


def test_a_model_of_recurrent_layers_only_is_saved(tmp_path: Path) -> None:
    model = Model.open(
        VARIANTS["qwen35, recurrent layers only"].tiny().write(tmp_path / "m.gguf"), threads=2
    )
    session, back = model.session(n_ctx=128), model.session(n_ctx=128)
    session.feed(IDS)
    assert session.kv_bytes_per_position == 0
    saving = StateWriter(session, tmp_path / "kv.state")
    assert saving.flush(60), saving.problem
    saving.close()
    assert restore_state(back, tmp_path / "kv.state", IDS).tokens == len(IDS)
    assert back.feed([5]).tobytes() == session.feed([5]).tobytes()
    model.close()


def test_a_second_turn_reads_no_message_again(tmp_path: Path) -> None:
    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", "qwen35", context_length=512), threads=2
    )
    for n_thought in (0, 8):
        turn = second_turn(model, 300, n_thought)
        assert turn.n_read_again == turn.n_prompt
        assert turn.n_computed <= turn.n_prompt - 300 + N_OPENING
    model.close()


def test_distances_count_across_chunks_and_in_narrow_caches(tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 200, 300).tolist()
    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", "bloom", dim=128, context_length=512), threads=2
    )
    expected = twin_logits(model, ids)[-1]
    for kv, bound in (("f32", 1e-9), ("f16", 1e-6), ("q8_0", 1e-3)):
        session = model.session(n_ctx=320, kv=kv)
        session.feed(ids[:-1])
        assert nmse(session.feed(ids[-1:]), expected) < bound
    model.close()


def test_a_context_ends_with_the_learned_positions(tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", "gpt2", context_length=40))
    session = model.session(n_ctx=64, kv="f32")
    assert session.n_ctx == 40
    assert (
        nmse(session.feed([*IDS, *IDS], all_logits=True), twin_logits(model, [*IDS, *IDS])) < 1e-9
    )
    with pytest.raises(EngineError, match="layers cannot forget"):
        session.shift(2, 4)
    model.close()


@pytest.mark.parametrize("name", ["plm", "minicpm3"])
def test_what_is_made_of_joint_matrices_counts_as_memory(name: str, tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", name))
    transposed = model.session(n_ctx=64).pipeline._buffers.transposed.values()
    assert (
        memory_needs(model.config, KV_TYPES["f16"]).fixed_bytes
        == sum(tiny.tensor.size_bytes for tiny in transposed)
        > 0
    )
    model.close()


def _valued(key: str, value: object, value_type: int | None = None) -> Change:
    return lambda tiny: tiny.set(key, value, value_type)


def _typed(name: str) -> Change:
    """Return a change of a vector or small table to another type."""

    def change(tiny: tiny_gguf.TinyGGUF) -> None:
        tensor = tiny.tensor(name)
        tensor.data = bytes(len(tensor.data) // 2)
        tensor.ggml_type = GGMLQuantizationType.F16

    return change


def _with(name: str, n: int) -> Change:
    return lambda tiny: tiny.add_vector(name, np.ones(n))


_STABLELM = "stablelm with norms of heads"
_K_NORM = "blk.1.attn_k_norm.weight"
_KEY_PATTERN = "gemma3.attention.sliding_window_pattern"
REFUSED: list[tuple[str, tuple[Change, ...], str]] = [
    (
        "command-r, 64 layers",
        (without("blk.0.attn_q_norm.weight"),),
        "blk.0.attn_q_norm.weight is missing",
    ),
    ("command-r", (_with("blk.0.attn_q_norm.weight", 64),), "blk.0.attn_q_norm.weight is unknown"),
    (_STABLELM, (without(_K_NORM),), f"{_K_NORM} is missing"),
    (
        "stablelm with norms of heads, side by side",
        (without(_K_NORM), _with(_K_NORM, 16)),
        f"{_K_NORM} has shape 16, the hyperparameters say 2 x 16",
    ),
    (_STABLELM, (_typed(_K_NORM),), f"{_K_NORM} is F16; norms"),
    (_STABLELM, (lambda tiny: tiny.fill(_K_NORM, float("nan")),), f"{_K_NORM} holds NaN"),
    (
        _STABLELM,
        (without("blk.0.ffn_norm.weight", "blk.0.ffn_norm.bias"),),
        "blk.1.ffn_norm.weight is unknown",
    ),
    (
        "phi3 with projections of their own",
        (without("blk.1.attn_v.weight"),),
        "blk.1.attn_v.weight is missing",
    ),
    ("apertus", (lambda tiny: tiny.drop("xielu.beta"),), "xielu.beta is missing"),
    ("apertus", (_valued("xielu.beta", np.ones(2, "<i4")),), "xielu.beta"),
    ("lfm2", (_typed("blk.1.shortconv.conv.weight"),), "blk.1.shortconv.conv.weight is F16"),
    (
        "hunyuan-dense",
        (_valued("hunyuan-dense.rope.scaling.alpha", 1e300, tiny_gguf.F64),),
        "rope.scaling.alpha",
    ),
    ("mistral3", (_valued("mistral3.rope.freq_base", 1.0),), "mistral3.rope.freq_base"),
    (
        "mistral3",
        (_valued("mistral3.rope.scaling.yarn_beta_fast", 1e30),),
        "mistral3.rope.scaling.yarn_beta_fast",
    ),
    (
        "mistral3",
        (_valued("mistral3.rope.scaling.yarn_beta_slow", 0.0),),
        "mistral3.rope.scaling.yarn_beta_slow",
    ),
    ("mistral3", (_valued("mistral3.rope.dimension_count", 8),), "mistral3.rope.dimension_count"),
    ("granite", (_valued("granite.logit_scale", 0.0),), "granite.logit_scale"),
    ("gemma3", (_valued(_KEY_PATTERN, np.array([True])),), _KEY_PATTERN),
    ("gemma3", (_valued(_KEY_PATTERN, np.array([2, 0], "<u4")),), _KEY_PATTERN),
]


@pytest.mark.parametrize(
    ("name", "changes", "words"), REFUSED, ids=[f"{name}: {words}" for name, _, words in REFUSED]
)
def test_what_a_family_cannot_have_is_refused_by_name(
    name: str, changes: tuple[Change, ...], words: str, tmp_path: Path
) -> None:
    described = {**ROWS, **VARIANTS}[name].tiny()
    for change in changes:
        change(described)
    assert words in refusal(described.write(tmp_path / "model.gguf"))


def test_a_width_that_no_norm_takes_is_refused(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf", "bitnet", hidden_dim=100)
    assert "bitnet.feed_forward_length is 100: must be a multiple of 8" in refusal(path)

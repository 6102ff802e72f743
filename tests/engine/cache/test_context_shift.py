"""Tokens dropped from the middle of a context: later tokens move down and keep their meaning."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import EngineError, Model
from engine.cache import hadamard
from engine.cache.kv_cache import KVCache, kv_type_of
from engine.cache.rotation import rotations_of
from engine.config import Rope
from engine.saved_state import StateWriter, restore_state
from engine.saved_state.segments import PrefixKeys
from tests.engine import tiny_gguf
from tests.engine.architectures import KINDS
from tests.engine.scripted_session import ScriptedSession, config_with

pytestmark = pytest.mark.slow

IDS = np.random.default_rng(0).integers(3, 250, 90).tolist()


RECURRENT = {"falcon-h1", "granitehybrid", "nemotron_h_moe", "lfm2moe", "qwen3next"}
"""Architectures that cannot shift; their attention layers equal those of a tested architecture."""
PLACED = {"gpt2"}
"""Architectures with position embeddings, which keys and values contain permanently."""
WITH_ONE = [name for name in KINDS if name not in RECURRENT | PLACED]


def one_layer(tmp_path: Path, architecture: str, **arguments: Any) -> Model:
    """Return a model of one layer.

    Its keys and values depend only on token and position, so moving them must be exact.
    """
    path = tmp_path / f"{architecture}.gguf"
    keys = {key: arguments.pop(key) for key in list(arguments) if "." in key}
    tiny = tiny_gguf.model(architecture, n_layers=1, n_heads=2, n_kv_heads=2, **arguments)
    for key, value in keys.items():
        tiny.set(f"{architecture}.{key}", value)
    return Model.open(tiny.write(path), threads=1)


GAPS = (8, 16), (5, 13), (0, 7), (1, 80), (40, 1)
"""Pairs of the number of tokens that stay and the number dropped after them."""


@pytest.mark.parametrize(
    ("architecture", "arguments", "kv", "max_error"),
    [
        *((name, {}, "f32", 1e-4) for name in WITH_ONE),
        *(
            (name, {}, kv, max_error)
            for name in ("llama", "phi2", "deepseek2")
            for kv, max_error in (("f16", 5e-3), ("q8_0", 0.05))
        ),
        ("llama", {"rope_factors": True}, "f32", 1e-4),
        ("llama", {}, "q4_0", 0.3),
        ("llama", {}, "q8_0/q4_0", 0.05),
    ],
)
def test_moved_tokens_of_one_layer_equal_computed_ones(
    tmp_path: Path, architecture: str, arguments: dict[str, Any], kv: str, max_error: float
) -> None:
    model = one_layer(tmp_path, architecture, **arguments)
    moved = model.session(n_ctx=128, kv=kv)
    fresh = model.session(n_ctx=128, kv=kv)
    for n_keep, n_drop in GAPS:
        moved.truncate(0)
        fresh.truncate(0)
        moved.feed(IDS)
        moved.shift(n_keep, n_drop)
        fresh.feed(IDS[:n_keep] + IDS[n_keep + n_drop :])
        assert moved.tokens == fresh.tokens
        logits, expected = (session.feed([9, 8, 7], all_logits=True) for session in (moved, fresh))
        assert np.abs(logits - expected).max() < max_error * np.abs(expected).max()
    model.close()


def test_unrotated_elements_of_a_head_do_not_change(tmp_path: Path) -> None:
    model = one_layer(tmp_path, "qwen2", **{"rope.dimension_count": 16})
    moved = model.session(n_ctx=128, kv="f32")
    fresh = model.session(n_ctx=128, kv="f32")
    moved.feed(IDS)
    moved.shift(3, 20)
    fresh.feed(IDS[:3] + IDS[23:])
    assert np.allclose(moved.feed([9]), fresh.feed([9]), atol=1e-4)
    model.close()


@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0"])
def test_the_end_can_be_dropped_but_missing_tokens_cannot(tmp_path: Path, kv: str) -> None:
    model = one_layer(tmp_path, "llama")
    session = model.session(n_ctx=128, kv=kv)
    session.feed(IDS)
    for n_keep, n_drop in ((-1, 5), (5, -1), (5, 0), (80, 11)):
        with pytest.raises(EngineError, match="cannot forget"):
            session.shift(n_keep, n_drop)
    assert session.tokens == IDS
    session.shift(80, 10)
    assert session.tokens == IDS[:80]
    with pytest.raises(EngineError, match="nothing to continue"):
        next(session.generate(None))  # type: ignore[arg-type]
    model.close()


def test_a_conversation_without_its_first_turns_reuses_the_cache(tmp_path: Path) -> None:
    model = one_layer(tmp_path, "llama")
    moved = model.session(n_ctx=128, kv="f32")
    fresh = model.session(n_ctx=128, kv="f32")
    system = [5, 6, 7, 8]
    turns = [[9, 9, n, *IDS[20 * n : 20 * n + 17]] for n in range(4)]
    moved.feed(sum(turns, system))
    shortened = [*system, *turns[2], *turns[3], *IDS[:6]]
    assert moved.shift_towards(shortened) == 40
    done = moved.prefill(shortened)
    assert (done.reused, done.fed) == (44, 6)
    fresh.prefill(shortened)
    assert np.allclose(moved.feed([9]), fresh.feed([9]), atol=1e-4)
    model.close()


@pytest.mark.smoke
@pytest.mark.parametrize(
    "tokens",
    [IDS, IDS[:50], [*IDS, 5], [4, *IDS], [*IDS[:30], 4, *IDS[40:]], [*IDS[:30], *IDS[80:]], []],
)
def test_tokens_that_leave_no_gap_are_not_shifted(tmp_path: Path, tokens: list[int]) -> None:
    model = one_layer(tmp_path, "llama")
    session = model.session(n_ctx=128)
    session.feed(IDS)
    assert session.shift_towards(tokens) == 0
    assert session.tokens == IDS
    model.close()


@pytest.mark.parametrize("kv", ["f16", "q8_0", "q8_0/q4_0"])
def test_a_state_follows_a_shift(tmp_path: Path, kv: str) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", n_heads=2, n_kv_heads=1), threads=1)
    session, restored = model.session(n_ctx=128, kv=kv), model.session(n_ctx=128, kv=kv)
    session.feed(IDS)
    saving = StateWriter(session, tmp_path / "kv.state")
    assert saving.flush(60)
    session.shift(11, 30)
    assert saving.flush(60)
    saving.close()
    assert restore_state(restored, tmp_path / "kv.state", session.tokens).tokens == 60
    assert restored.tokens == session.tokens
    assert (restored.feed([5, 4, 3]) == session.feed([5, 4, 3])).all()
    model.close()


@pytest.mark.parametrize(
    ("kv", "max_error"), [("f32", 1e-5), ("f16", 3e-3), ("q8_0", 0.03), ("q4_0", 0.3)]
)
def test_the_keys_of_each_layer_are_rotated_by_its_own_rope(kv: str, max_error: float) -> None:
    """Layers with two ropes that pair elements differently, one of them scaled, and one layer
    without a rope; the keys are random."""
    ropes = (
        Rope(10000.0, 32, neighbours=True),
        Rope(500.0, 16, neighbours=False, scaling_factor=4.0),
        None,
    )
    config = config_with(*ropes)
    rotations = rotations_of(config)
    cache = KVCache(config, kv_type_of(kv, config), 64, rotations)
    rng = np.random.default_rng(0)
    # Shape: (layer, head, position, element).
    plain = rng.standard_normal((len(ropes), 2, 50, 32)).astype(np.float32)

    def rotated(layer: int, position: int, rotated_position: int) -> np.ndarray:
        keys = plain[layer, :, position : position + 1].copy()
        rope = ropes[layer]
        if rope is not None:
            rotations[rope].rotate(keys, rotated_position)
        return hadamard.multiplied(keys) if cache.kv_type.has_hadamard else keys

    for layer in range(len(ropes)):
        for position in range(50):
            cache.layers[layer].keys.write_tiles(position, rotated(layer, position, position))
    cache.shift(10, 13, 50)
    for layer in range(len(ropes)):
        shifted = cache.layers[layer].keys.read_tiles(10, 37)
        expected = np.concatenate(
            [rotated(layer, position, position - 13) for position in range(23, 50)], axis=1
        )
        assert np.abs(shifted - expected).max() < max_error * np.abs(expected).max()


def test_keys_of_states_distinguish_models_with_several_ropes() -> None:
    a = Rope(10000.0, 32, neighbours=True)
    b = Rope(500.0, 32, neighbours=True)
    models = [
        (a, a),
        (a, b),
        (b, a),
        (a, None),
        (None, None),
        (a, replace(b, scaling_factor=2.0)),
        (a, replace(a, magnitude=2.0)),
    ]
    sessions: list[Any] = [ScriptedSession(config=config_with(*ropes)) for ropes in models]
    keys = {PrefixKeys(session).at([], 0) for session in sessions}
    assert len(keys) == len(models)

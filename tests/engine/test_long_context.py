"""A context longer than the trained one, and one that memory has no room for in f16: what is said
and done."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import EngineError, Model
from engine.cache.kv_cache import kv_type_of, memory_needs
from engine.machine import host
from engine.weights.modes import RESERVE_BYTES
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow

IDS = np.random.default_rng(1).integers(3, 250, 100).tolist()
TRAINED = 64


def opened(
    tmp_path: Path, architecture: str = "llama", rope_scaling: str = "file", **keys: Any
) -> Model:
    described = tiny_gguf.model(
        architecture, context_length=TRAINED, n_heads=2, n_kv_heads=1, head_dim=32
    )
    for key, value in keys.items():
        described.set(f"{architecture}.{key.replace('__', '.')}", value)
    model = Model.open(described.write(tmp_path / f"{rope_scaling}{len(keys)}.gguf"), threads=1)
    model.rope_scaling = rope_scaling
    return model


def test_a_longer_context_than_the_trained_is_warned_about(tmp_path: Path) -> None:
    model = opened(tmp_path)
    assert model.session(n_ctx=TRAINED).notices == ()
    session = model.session(n_ctx=4 * TRAINED)
    assert session.notices == (
        "the context of 256 tokens is longer than the 64 that the model was trained for: "
        "beyond these it may write "
        "nonsense (rope_scaling yarn helps)",
    )
    assert session.notices[0] in model.notices
    session.close()
    assert not [line for line in model.notices if "trained" in line]
    model.close()


def test_yarn_computes_what_a_file_with_its_keys_does(tmp_path: Path) -> None:
    stretched = opened(tmp_path, rope_scaling="yarn")
    keys = {"type": "yarn", "factor": 2.0, "original_context_length": TRAINED}
    files = opened(
        tmp_path,
        context_length=2 * TRAINED,
        **{f"rope__scaling__{key}": value for key, value in keys.items()},
    )
    session = stretched.session(n_ctx=2 * TRAINED)
    assert session.notices == ()
    expected = files.session(n_ctx=2 * TRAINED).feed(IDS, all_logits=True)
    assert (session.feed(IDS, all_logits=True) == expected).all()
    plain = opened(tmp_path).session(n_ctx=2 * TRAINED).feed(IDS, all_logits=True)
    assert np.abs(plain - expected).max() > 1e-3
    short = stretched.session(n_ctx=TRAINED).feed(IDS[:TRAINED], all_logits=True)
    assert (short == plain[:TRAINED]).all()  # nothing to stretch
    for model in (stretched, files):
        model.close()


def test_layers_with_a_window_are_not_stretched(tmp_path: Path) -> None:
    model = opened(tmp_path, "gemma3", "yarn", rope__scaling__factor=1.0)
    session = model.session(n_ctx=2 * TRAINED)
    factors = {
        attention.window is None: attention.rope.scaling_factor
        for attention in session.config.attentions.values()
        if attention.rope
    }
    assert factors == {True: 2.0, False: 1.0}
    model.close()


@pytest.mark.parametrize(
    ("architecture", "keys", "why"),
    [
        (
            "llama",
            {"rope__scaling__type": "linear", "rope__scaling__factor": 2.0},
            "its file stretches its rope already",
        ),
        ("gpt2", {}, None),
        ("bloom", {}, "it has no rope"),
    ],
)
def test_what_yarn_cannot_stretch_is_refused(
    tmp_path: Path, architecture: str, keys: dict[str, Any], why: str | None
) -> None:
    model = opened(tmp_path, architecture, "yarn", **keys)
    model.session(n_ctx=TRAINED)
    if why is None:  # it knows no positions after the trained ones, so none are made
        assert model.session(n_ctx=2 * TRAINED).n_ctx == TRAINED
    else:
        with pytest.raises(
            EngineError, match=f"context of 64 tokens cannot be stretched by YaRN: {why}"
        ):
            model.session(n_ctx=2 * TRAINED)
        model.rope_scaling = "file"
        assert "a smaller context is better" in model.session(n_ctx=2 * TRAINED).notices[0]
    model.close()


def needed(model: Model, kv: str, n_ctx: int) -> int:
    return memory_needs(model.config, kv_type_of(kv, model.config)).bytes_for(n_ctx)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("scratch_of", "n_ctx", "expected"),
    [
        ("f16", 512, "f16"),
        ("q8_0", 512, "q8_0"),
        ("q8_0/q4_0", 512, "q8_0/q4_0"),
        ("f16", None, "f16"),
        ("q8_0/q4_0", None, "q8_0"),
    ],
)
def test_auto_is_less_exact_only_where_memory_is_short(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scratch_of: str,
    n_ctx: int | None,
    expected: str,
) -> None:
    model = opened(tmp_path, context_length=512)
    room = (2 if n_ctx is None else 1) * needed(model, scratch_of, 512)
    monkeypatch.setattr(host, "available_memory_bytes", lambda: RESERVE_BYTES + room)
    session = model.session(n_ctx=n_ctx, kv="auto")
    assert session.kv_type == expected
    assert [line.split(",")[0] for line in session.notices] == (
        [] if expected == "f16" else [f"keys and values are kept in {expected}"]
    )
    model.close()


@pytest.mark.parametrize(
    ("fits", "limit", "chosen"),
    [
        (4 * 512, 512, 512),
        (4 * 512, 256, 256),
        (4 * 400, 512, 400),
        # Up to the roomy context, half of what fits; here 256.
        (512, 512, 256),
        (300, 512, 256),
    ],
)
def test_a_chosen_context_leaves_memory_for_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: int, limit: int, chosen: int
) -> None:
    monkeypatch.setattr("engine.model.ROOMY_CONTEXT", 256)
    model = opened(tmp_path, context_length=512)
    room = needed(model, "f16", fits)
    monkeypatch.setattr(host, "available_memory_bytes", lambda: RESERVE_BYTES + room)
    assert model.session(default_limit=limit).n_ctx == chosen
    model.close()


def test_auto_leaves_out_types_that_the_heads_do_not_suit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", head_dim=24), threads=1)
    room = needed(model, "f16", 64)
    monkeypatch.setattr(host, "available_memory_bytes", lambda: RESERVE_BYTES + room - 1)
    with pytest.raises(EngineError, match=r"needs .* for its KV cache \(f16\)"):
        model.session(n_ctx=64, kv="auto")
    model.close()

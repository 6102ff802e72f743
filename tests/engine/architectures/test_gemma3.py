"""The gemma3 architecture: twin, tiny model, and what its windows and two ropes must agree on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from engine.config import Rope
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin, gelu
from tests.engine.refusals import refusal
from tests.engine.test_models import IDS, nmse

WINDOW = 6


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """Layers slide in turn, and the two bases differ, so that neither passes for the other within a few tokens."""
    described = tiny_gguf.decoder(
        "gemma3", **{"vocabulary": "spm", "head_norms": True, "norms_after": True, **arguments}
    )
    described.set("gemma3.attention.sliding_window", WINDOW)
    described.set("gemma3.attention.sliding_window_pattern", 2)
    described.set("gemma3.rope.freq_base", 1000.0)
    described.set("gemma3.rope.scaling.type", "linear")
    described.set("gemma3.rope.scaling.factor", 4.0)
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x = twin.embed(ids) * np.sqrt(twin.key("embedding_length"))
    whole = twin.turner(len(ids), neighbours=False)
    local = twin.turner(len(ids), neighbours=False, theta=twin.key("rope.freq_base_swa", 10000.0), divisor=1.0)
    period = twin.key("attention.sliding_window_pattern", 6)
    for number, block in enumerate(twin.blocks):
        window = twin.key("attention.sliding_window") if number % period < period - 1 else None
        attended = twin.attention(
            block,
            twin.norm(x, block + "attn_norm"),
            local if window else whole,
            has_head_norms=True,
            window=window,
            soft_cap=twin.key("attn_logit_softcapping"),
        )
        x = x + twin.norm(attended, block + "post_attention_norm")
        hidden = twin.feed_forward(block, twin.norm(x, block + "ffn_norm"), gelu)
        x = x + twin.norm(hidden, block + "post_ffw_norm")
    found, cap = twin.head(x), twin.key("final_logit_softcapping")
    return cap * np.tanh(found / cap) if cap else found


def opened(tmp_path: Path, **keys: Any) -> Model:
    arguments = {key: keys.pop(key) for key in list(keys) if "." not in key and "cap" not in key}
    described = tiny(**arguments)
    for key, value in keys.items():
        described.set(f"gemma3.{key}", value)
    return Model.open(described.write(tmp_path / "m.gguf"), threads=2)


def test_windows_and_ropes_are_those_of_each_layer(tmp_path: Path) -> None:
    model = opened(tmp_path, n_layers=4)
    local, whole = Rope(10000.0, 16, neighbours=False), Rope(1000.0, 16, neighbours=False, scaling_factor=4.0)
    found = [(one.window, one.rope) for one in model.config.attentions.values()]
    assert found == [(WINDOW, local), (None, whole)] * 2
    assert model.config.ropes == (local, whole)
    model.close()


@pytest.mark.slow
@pytest.mark.parametrize(("window", "n"), [(1, 40), (7, 300), (24, 700), (256, 600), (300, 700), (513, 700)])
def test_windows_across_tiles_and_chunks_equal_the_numpy_twin(window: int, n: int, tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 200, n).tolist()
    keys = {"attention.sliding_window": window}
    model = opened(tmp_path, context_length=1024, **keys)
    wanted = logits(Twin(model._checked), ids)
    session = model.session(n_ctx=768, kv="f32")
    assert nmse(session.feed(ids, every=True), wanted) < 1e-9
    session.truncate(n - 4)
    assert nmse(np.stack([session.feed([token]) for token in ids[-4:]]), wanted[-4:]) < 1e-9
    model.close()


@pytest.mark.parametrize(
    "keys", [{"attn_logit_softcapping": 0.7}, {"final_logit_softcapping": 0.5}, {"rope.freq_base_swa": 300.0}]
)
def test_caps_and_bases_equal_the_numpy_twin(keys: dict[str, float], tmp_path: Path) -> None:
    model, plain = opened(tmp_path, **keys), Model.open(tiny().write(tmp_path / "plain.gguf"), threads=1)
    found = model.session(n_ctx=64, kv="f32").feed(IDS, every=True)
    assert nmse(found, logits(Twin(model._checked), IDS)) < 1e-9
    assert nmse(found, logits(Twin(plain._checked), IDS)) > 1e-4, "the key makes no difference"
    model.close()
    plain.close()


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
def test_threads_and_cuts_change_no_bit(quant: str, tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(0, 200, 90).tolist()
    path = tiny(quant=quant, context_length=256).write(tmp_path / "m.gguf")
    results = []
    for threads in (1, 3):
        model = Model.open(path, threads=threads)
        whole, parts = model.session(n_ctx=128), model.session(n_ctx=128)
        results += [whole.feed(ids), [parts.feed(part) for part in (ids[:31], ids[31:50], ids[50:])][-1]]
        model.close()
    assert all((one == results[0]).all() for one in results)


def test_what_is_no_pattern_is_refused(tmp_path: Path) -> None:
    for pattern in (0, -1, "x", np.array([True]), np.array([2, 0], "<u4")):
        described = tiny()
        kind = tiny_gguf.I32 if isinstance(pattern, int) else None
        described.set("gemma3.attention.sliding_window_pattern", pattern, kind)
        assert "attention.sliding_window_pattern" in refusal(described.write(tmp_path / "model.gguf"))

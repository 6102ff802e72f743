"""The hunyuan-dense architecture: twin and tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin, causal_attention
from tests.engine.refusals import refusal
from tests.engine.test_models import IDS, nmse

NAME = "hunyuan-dense"


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    return tiny_gguf.decoder(NAME, **{"vocabulary": "bpe", "head_norms": True, **arguments})


def logits(twin: Twin, ids: list[int]) -> Array:
    n, width = len(ids), twin.key("attention.key_length")
    alpha = twin.key("rope.scaling.alpha", 1.0)
    turn = twin.turner(n, neighbours=False, theta=twin.key("rope.freq_base") * alpha ** (width / (width - 2)))
    x = twin.embed(ids)
    for block in twin.blocks:
        h = twin.norm(x, block + "attn_norm")
        q, k, v = (twin.project(h, block + f"attn_{letter}").reshape(n, -1, width) for letter in "qkv")
        q, k = twin.norm(turn(q), block + "attn_q_norm"), twin.norm(turn(k), block + "attn_k_norm")
        x = x + twin.project(causal_attention(q * width**-0.5, k, v).reshape(n, -1), block + "attn_output")
        x = x + twin.feed_forward(block, twin.norm(x, block + "ffn_norm"))
    return twin.head(x)


def test_a_base_that_has_yet_to_grow_equals_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny()
    described.set(f"{NAME}.rope.scaling.alpha", 50.0)
    model, plain = Model.open(described.write(tmp_path / "m.gguf")), Model.open(tiny().write(tmp_path / "plain.gguf"))
    found = model.session(n_ctx=64, kv="f32").feed(IDS, every=True)
    assert nmse(found, logits(Twin(model._checked), IDS)) < 1e-9
    assert nmse(found, logits(Twin(plain._checked), IDS)) > 1e-6
    model.close()
    plain.close()


@pytest.mark.parametrize("alpha", [1e300, float("nan"), "x"])
def test_a_base_that_grows_beyond_bounds_is_refused(alpha: float | str, tmp_path: Path) -> None:
    described = tiny()
    described.set(f"{NAME}.rope.scaling.alpha", alpha, tiny_gguf.F64 if isinstance(alpha, float) else None)
    assert f"{NAME}.rope.scaling.alpha" in refusal(described.write(tmp_path / "model.gguf"))

"""The gemma2 architecture: twin, tiny model, and what its windows and caps change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin, gelu
from tests.engine.test_models import IDS, nmse

WINDOW = 6


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """Caps lie within the range of what they cap."""
    described = tiny_gguf.decoder("gemma2", **{"vocabulary": "spm", "norms_after": True, **arguments})
    described.set("gemma2.attention.sliding_window", WINDOW)
    described.set("gemma2.attn_logit_softcapping", 0.5)
    described.set("gemma2.final_logit_softcapping", 0.5)
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x = twin.embed(ids) * np.sqrt(twin.key("embedding_length"))
    turn = twin.turner(len(ids), neighbours=False)
    width = twin.key("embedding_length") / twin.key("attention.head_count")
    scale = width**-0.5 if len(twin.blocks) == 46 else None
    for number, block in enumerate(twin.blocks):
        attended = twin.attention(
            block,
            twin.norm(x, block + "attn_norm"),
            turn,
            scale=scale,
            window=twin.key("attention.sliding_window", 4096) if number % 2 == 0 else None,
            soft_cap=twin.key("attn_logit_softcapping", 50.0),
        )
        x = x + twin.norm(attended, block + "post_attention_norm")
        hidden = twin.feed_forward(block, twin.norm(x, block + "ffn_norm"), gelu)
        x = x + twin.norm(hidden, block + "post_ffw_norm")
    cap = twin.key("final_logit_softcapping", 30.0)
    return cap * np.tanh(twin.head(x) / cap)


@pytest.mark.parametrize("key", ["attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"])
def test_window_and_cap_keys_left_out_equal_the_numpy_twin(key: str, tmp_path: Path) -> None:
    described = tiny()
    described.drop(f"gemma2.{key}")
    model, full = Model.open(described.write(tmp_path / "m.gguf")), Model.open(tiny().write(tmp_path / "full.gguf"))
    found = model.session(n_ctx=64, kv="f32").feed(IDS, every=True)
    assert nmse(found, logits(Twin(model._checked), IDS)) < 1e-9
    assert nmse(found, logits(Twin(full._checked), IDS)) > 1e-5, "the key makes no difference"
    model.close()
    full.close()


def test_the_largest_model_scales_queries_by_its_own_width(tmp_path: Path) -> None:
    model = Model.open(tiny(n_layers=46, dim=64, head_dim=32).write(tmp_path / "m.gguf"))
    assert {one.scale for one in model.config.attentions.values()} == {0.25}
    found = model.session(n_ctx=64, kv="f32").feed(IDS, every=True)
    assert nmse(found, logits(Twin(model._checked), IDS)) < 1e-9
    model.close()

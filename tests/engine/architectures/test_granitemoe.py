"""The granitemoe architecture: twin, tiny model, and its shared expert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.test_models import IDS, nmse

SCALES = {"embedding_scale": 6.0, "residual_scale": 0.4, "attention.scale": 0.1, "logit_scale": 4.0}


def tiny(shared_dim: int = 64, **arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("granitemoe", **{"vocabulary": "spm", **arguments})
    described.with_experts(hidden_dim=described.value("granitemoe.feed_forward_length"), shared_dim=shared_dim)
    for key, value in {**SCALES, **({"expert_shared_feed_forward_length": shared_dim} if shared_dim else {})}.items():
        described.set(f"granitemoe.{key}", value)
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids) * twin.key("embedding_scale"), twin.turner(len(ids), neighbours=True)
    residual_scale, scale = twin.key("residual_scale"), twin.key("attention.scale")
    for block in twin.blocks:
        x = x + residual_scale * twin.attention(block, twin.norm(x, block + "attn_norm"), turn, scale=scale)
        h = twin.norm(x, block + "ffn_norm")
        passed = twin.experts(block, h, twin.routes(block, h, is_renormalised=True))
        if twin.tensor(block + "ffn_up_shexp.weight") is not None:
            passed = passed + twin.shared_expert(block, h)
        x = x + residual_scale * passed
    return twin.head(x) / twin.key("logit_scale")


@pytest.mark.parametrize("shared_dim", [0, 24])
def test_a_shared_expert_of_any_width_equals_the_numpy_twin(shared_dim: int, tmp_path: Path) -> None:
    model = Model.open(tiny(shared_dim).write(tmp_path / "m.gguf"))
    found = model.session(n_ctx=64, kv="f32").feed(IDS, every=True)
    assert nmse(found, logits(Twin(model._checked), IDS)) < 1e-9
    model.close()

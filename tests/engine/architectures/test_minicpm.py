"""The minicpm architecture: twin, tiny model, and multipliers that a file may state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.test_models import IDS, nmse


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """As older files are: without multipliers."""
    return tiny_gguf.decoder("minicpm", **{"vocabulary": "spm", **arguments})


def logits(twin: Twin, ids: list[int]) -> Array:
    turn = twin.turner(len(ids), neighbours=True)
    x = twin.embed(ids) * twin.key("embedding_scale", 12.0)
    scale = twin.key("residual_scale", 1.4 / len(twin.blocks) ** 0.5)
    for block in twin.blocks:
        x = x + scale * twin.attention(block, twin.norm(x, block + "attn_norm"), turn)
        x = x + scale * twin.feed_forward(block, twin.norm(x, block + "ffn_norm"))
    return twin.head(x) / twin.key("logit_scale", 256 / twin.key("embedding_length"))


@pytest.mark.parametrize("key", ["embedding_scale", "residual_scale", "logit_scale"])
def test_what_the_file_states_counts(key: str, tmp_path: Path) -> None:
    described = tiny(dim=128)
    described.set(f"minicpm.{key}", 0.3)
    model = Model.open(described.write(tmp_path / "m.gguf"))
    found = model.session(n_ctx=64, kv="f32").feed(IDS, every=True)
    assert nmse(found, logits(Twin(model._checked), IDS)) < 1e-9
    model.close()

"""The glm4 architecture: twin and tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.test_models import IDS, nmse


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """Half of each head is turned."""
    described = tiny_gguf.decoder("glm4", **{"vocabulary": "bpe", "norms_after": True, **arguments})
    described.fuse("ffn_up.weight", "ffn_gate.weight", "ffn_up.weight")
    described.set("glm4.rope.dimension_count", 8)
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids), twin.turner(len(ids), neighbours=True)
    for block in twin.blocks:
        attended = twin.attention(block, twin.norm(x, block + "attn_norm"), turn)
        x = x + twin.norm(attended, block + "post_attention_norm")
        hidden = twin.fused_feed_forward(block, twin.norm(x, block + "ffn_norm"))
        x = x + twin.norm(hidden, block + "post_ffw_norm")
    return twin.head(x)


def test_biases_equal_the_numpy_twin(tmp_path: Path) -> None:
    model = Model.open(tiny(biases=True).write(tmp_path / "m.gguf"))
    session, wanted = model.session(n_ctx=64, kv="f32"), logits(Twin(model._checked), IDS)
    assert nmse(session.feed(IDS, every=True), wanted) < 1e-9
    session.truncate(0)
    assert nmse(np.stack([session.feed([token]) for token in IDS]), wanted) < 1e-9
    model.close()

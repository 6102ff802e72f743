"""The arcee architecture: twin and tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin, squared_relu
from tests.engine.test_models import IDS, nmse


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("arcee", **{"vocabulary": "bpe", **arguments})
    described.drop_tensors("ffn_gate.weight")
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids), twin.turner(len(ids), neighbours=True)
    if twin.key("rope.scaling.type") == "yarn":
        turn = twin.yarn_turner(len(ids), neighbours=True)
    for block in twin.blocks:
        x = x + twin.attention(block, twin.norm(x, block + "attn_norm"), turn)
        x = x + twin.plain_feed_forward(block, twin.norm(x, block + "ffn_norm"), squared_relu)
    return twin.head(x)


@pytest.mark.slow
def test_yarn_and_width_100_equal_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny(hidden_dim=100)
    described.set("arcee.rope.scaling.type", "yarn")
    described.set("arcee.rope.scaling.factor", 8.0)
    described.set("arcee.rope.scaling.original_context_length", 32)
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=2)
    session, wanted = model.session(n_ctx=64, kv="f32"), logits(Twin(model._checked), IDS)
    assert nmse(session.feed(IDS, every=True), wanted) < 1e-9
    session.truncate(0)
    assert nmse(np.stack([session.feed([token]) for token in IDS]), wanted) < 1e-9
    model.close()

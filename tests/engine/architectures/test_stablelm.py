"""The stablelm architecture: twin and tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.refusals import refusal
from tests.engine.test_models import IDS, nmse


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """A quarter of each head is turned."""
    described = tiny_gguf.decoder("stablelm", **{"vocabulary": "bpe", **arguments})
    described.set("stablelm.rope.dimension_count", 4)
    described.with_layer_norms()
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids), twin.turner(len(ids), neighbours=False)
    for block in twin.blocks:
        x = x + twin.attention(block, twin.layer_norm(x, block + "attn_norm"), turn)
        x = x + twin.feed_forward(block, twin.layer_norm(x, block + "ffn_norm"))
    return twin.project(twin.layer_norm(x, "output_norm"), "output")


def test_biases_equal_the_numpy_twin(tmp_path: Path) -> None:
    model = Model.open(tiny(biases=True).write(tmp_path / "m.gguf"))
    found = model.session(n_ctx=64, kv="f32").feed(IDS, every=True)
    assert nmse(found, logits(Twin(model._checked), IDS)) < 1e-9
    model.close()


def test_norms_of_heads_are_refused(tmp_path: Path) -> None:
    described = tiny()
    described.add_vector("blk.0.attn_q_norm.weight", np.ones(64))
    assert "blk.0.attn_q_norm.weight is unknown" in refusal(described.write(tmp_path / "model.gguf"))

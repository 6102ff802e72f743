"""The nemotron architecture: twin and tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin, squared_relu
from tests.engine.test_models import IDS, nmse


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """Half of each head is turned."""
    described = tiny_gguf.decoder("nemotron", **{"vocabulary": "bpe", **arguments})
    described.set("nemotron.rope.dimension_count", 8)
    described.drop_tensors("ffn_gate.weight")
    described.with_layer_norms()
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids), twin.turner(len(ids), neighbours=False)
    for block in twin.blocks:
        x = x + twin.attention(block, twin.layer_norm(x, block + "attn_norm"), turn)
        x = x + twin.plain_feed_forward(block, twin.layer_norm(x, block + "ffn_norm"), squared_relu)
    return twin.unembed(twin.layer_norm(x, "output_norm"))


def test_biases_of_projections_equal_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny(biases=True)
    described.add_biases("attn_output", "ffn_up", "ffn_down")
    model = Model.open(described.write(tmp_path / "m.gguf"))
    found = model.session(n_ctx=64, kv="f32").feed(IDS, every=True)
    assert nmse(found, logits(Twin(model._checked), IDS)) < 1e-9
    model.close()

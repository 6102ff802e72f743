"""The phi2 architecture: twin and tiny model."""

from __future__ import annotations

from typing import Any

from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin, gelu


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """Half of each head is turned."""
    described = tiny_gguf.decoder("phi2", **{"vocabulary": "bpe", "biases": True, **arguments})
    described.set("phi2.rope.dimension_count", 8)
    described.drop_tensors("ffn_gate.weight", "ffn_norm.weight")
    described.with_layer_norms()
    described.add_biases("attn_output", "ffn_up", "ffn_down", "output")
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids), twin.turner(len(ids), neighbours=False)
    for block in twin.blocks:
        h = twin.layer_norm(x, block + "attn_norm")
        x = x + twin.attention(block, h, turn) + twin.plain_feed_forward(block, h, gelu)
    return twin.unembed(twin.layer_norm(x, "output_norm"))

"""The smollm3 architecture: twin and tiny model."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """Five layers, so that one without rope lies between others."""
    return tiny_gguf.decoder("smollm3", **{"vocabulary": "bpe", "n_layers": 5, **arguments})


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids), twin.turner(len(ids), neighbours=True)
    for number, block in enumerate(twin.blocks):
        h = twin.norm(x, block + "attn_norm")
        x = x + twin.attention(block, h, np.copy if (number + 1) % 4 == 0 else turn)
        x = x + twin.feed_forward(block, twin.norm(x, block + "ffn_norm"))
    return twin.head(x)

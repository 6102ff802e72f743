"""The qwen2 architecture: twin and tiny model."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    return tiny_gguf.decoder("qwen2", **{"vocabulary": "bpe", "biases": True, **arguments})


def logits(twin: Twin, ids: list[int]) -> Array:
    turn = twin.turner(len(ids), neighbours=False)
    return twin.head(twin.pre_norm_layers(twin.embed(ids), partial(twin.attention, turn=turn)))

"""The olmoe architecture: twin and tiny model."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("olmoe", **{"vocabulary": "bpe", "head_norms": "whole", **arguments})
    described.with_experts(hidden_dim=described.value("olmoe.feed_forward_length"))
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    turn = twin.turner(len(ids), neighbours=False)
    attention = partial(twin.attention, turn=turn, has_whole_norms=True)

    def feed_forward(block: str, h: Array) -> Array:
        return twin.experts(block, h, twin.routes(block, h))

    return twin.head(twin.pre_norm_layers(twin.embed(ids), attention, feed_forward))

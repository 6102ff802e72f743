"""The qwen2moe architecture: twin, tiny model, and its gated shared expert."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("qwen2moe", **{"vocabulary": "bpe", "biases": True, **arguments})
    described.with_experts(shared_dim=described.value("qwen2moe.feed_forward_length"), shared_gate=True)
    described.set("qwen2moe.expert_feed_forward_length", described.tensor("blk.0.ffn_down_exps.weight").dims[0])
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    turn = twin.turner(len(ids), neighbours=False)
    attention = partial(twin.attention, turn=turn)

    def feed_forward(block: str, h: Array) -> Array:
        score = h @ twin.tensor(block + "ffn_gate_inp_shexp.weight")
        gate = 1 / (1 + np.exp(-score))[:, None]
        return twin.experts(block, h, twin.routes(block, h)) + gate * twin.shared_expert(block, h)

    return twin.head(twin.pre_norm_layers(twin.embed(ids), attention, feed_forward))

"""The ernie4_5-moe architecture: twin, tiny model, and the layers that have experts."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("ernie4_5-moe", **{"vocabulary": "spm", **arguments})
    described.with_experts(first=1, choice_biases=True, shared_dim=64)
    if "blk.1.ffn_down_exps.weight" in (one.name for one in described.tensors):
        described.set("ernie4_5-moe.expert_feed_forward_length", described.tensor("blk.1.ffn_down_exps.weight").dims[0])
    described.set("ernie4_5-moe.expert_shared_feed_forward_length", 64)
    described.set("ernie4_5-moe.interleave_moe_layer_step", 1)
    described.set("ernie4_5-moe.leading_dense_block_count", 1)
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    turn = twin.turner(len(ids), neighbours=True)
    attention = partial(twin.attention, turn=turn)

    def feed_forward(block: str, h: Array) -> Array:
        if twin.tensor(block + "ffn_gate_inp.weight") is None:
            return twin.feed_forward(block, h)
        routed = twin.experts(block, h, twin.routes(block, h, is_renormalised=True))
        return routed + twin.shared_expert(block, h)

    return twin.head(twin.pre_norm_layers(twin.embed(ids), attention, feed_forward))

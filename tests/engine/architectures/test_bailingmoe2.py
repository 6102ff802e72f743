"""The bailingmoe2 architecture: twin, tiny model, and groups of experts."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin

KEYS = {
    "expert_feed_forward_length": 64, "expert_shared_count": 2, "leading_dense_block_count": 1,
    "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5,
    "expert_group_count": 4, "expert_group_used_count": 2, "rope.dimension_count": 8,
}  # fmt: skip


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("bailingmoe2", **{"vocabulary": "bpe", "head_norms": True, **arguments})
    described.with_experts(8, 2, first=1, choice_biases=True, shared_dim=128)
    described.fuse("attn_qkv.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight")
    for key, value in KEYS.items():
        described.set(f"bailingmoe2.{key}", value)
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    turn = twin.turner(len(ids), neighbours=False)
    attention = partial(twin.attention, turn=turn, has_head_norms=True)

    def feed_forward(block: str, h: Array) -> Array:
        if twin.tensor(block + "ffn_gate_inp.weight") is None:
            return twin.feed_forward(block, h)
        weights = twin.routes(block, h, score="sigmoid", is_renormalised=True, scale=twin.key("expert_weights_scale"))
        routed = twin.experts(block, h, weights)
        return routed + twin.shared_expert(block, h)

    return twin.head(twin.pre_norm_layers(twin.embed(ids), attention, feed_forward))

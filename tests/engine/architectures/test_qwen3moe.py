"""The qwen3moe architecture: twin and tiny model."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin


def tiny(
    n_experts: int = 6, n_used: int = 2, expert_dim: int | None = None, is_fused: bool = False, **arguments: Any
) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("qwen3moe", **{"vocabulary": "bpe", "head_norms": True, **arguments})
    described.with_experts(n_experts, n_used, expert_dim, is_fused=is_fused)
    hidden = described.tensor("blk.0.ffn_down_exps.weight").dims[0]
    described.set("qwen3moe.expert_feed_forward_length", hidden)
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    turn = twin.turner(len(ids), neighbours=False)
    attention = partial(twin.attention, turn=turn, has_head_norms=True)

    def feed_forward(block: str, h: Array) -> Array:
        return twin.experts(block, h, twin.routes(block, h, is_renormalised=True))

    return twin.head(twin.pre_norm_layers(twin.embed(ids), attention, feed_forward))

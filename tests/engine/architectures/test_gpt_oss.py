"""The gpt-oss architecture: twin, tiny model, and its gate at the edges of what it clamps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.engine import tiny_gguf
from tests.engine.architectures.rows import sinks
from tests.engine.reference import Array, Twin
from tests.engine.test_models import assert_equals_twin

WINDOW = 6
KEYS = {
    "attention.sliding_window": WINDOW, "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 64,
}  # fmt: skip


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("gpt-oss", **{"vocabulary": "bpe", "biases": True, **arguments})
    described.with_experts(biases=True)
    described.rename("ffn_norm", "post_attention_norm")
    described.add_biases("attn_output")
    sinks(described)
    described.set("gpt-oss.expert_feed_forward_length", described.tensor("blk.0.ffn_down_exps.weight").dims[0])
    for key, value in KEYS.items():
        described.set(f"gpt-oss.{key}", value)
    return described


def clamped(gate: Array, up: Array) -> Array:
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)


def logits(twin: Twin, ids: list[int]) -> Array:
    is_stretched = twin.key("rope.scaling.type") == "yarn"
    turn = (twin.yarn_turner if is_stretched else twin.turner)(len(ids), neighbours=False)

    def attention(block: str, h: Array) -> Array:
        window = twin.key("attention.sliding_window") if twin.blocks.index(block) % 2 == 0 else None
        return twin.attention(block, h, turn, window=window, sinks=twin.tensor(block + "attn_sinks.weight"))

    def feed_forward(block: str, h: Array) -> Array:
        return twin.experts(block, h, twin.routes(block, h, score="chosen"), clamped)

    x = twin.pre_norm_layers(twin.embed(ids), attention, feed_forward, "post_attention_norm")
    return twin.head(x)


def test_values_beyond_what_the_gate_clamps_equal_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny(n_layers=1)
    for name in ("gate", "up"):
        described.fill(f"blk.0.ffn_{name}_exps.bias", 0.0)
        tensor = described.tensor(f"blk.0.ffn_{name}_exps.weight")
        tensor.data = (8 * np.frombuffer(tensor.data, "<f4")).tobytes()
    assert_equals_twin(described, logits, tmp_path)

"""The steps that the decoder-only architectures share, as operations of a plan.

``compose`` of an architecture calls these in order; speed lives in the kernels, never here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.buffers import Activations

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.kv_cache import KVCache
    from engine.plan import Plan
    from engine.weights import Tensor, Weights


class DecoderBuffers:
    """The vectors a decoder hands from step to step, for blocks of up to ``columns`` tokens."""

    def __init__(self, config: ModelConfig, columns: int) -> None:
        def vector(name: str, n: int) -> Activations:
            return Activations(name, n, columns)

        self.x = vector("x", config.dim)  # the residual stream
        self.normed = vector("normed", config.dim)
        self.q = vector("q", config.n_heads * config.head_dim)
        self.k = vector("k", config.n_kv_heads * config.head_dim)
        self.v = vector("v", config.n_kv_heads * config.head_dim)
        self.angles = vector("angles", config.rope_dim)  # cos and sin of rope_dim / 2 pairs
        self.attended = vector("attended", config.n_heads * config.head_dim)
        self.gate = vector("gate", config.hidden_dim)
        self.up = vector("up", config.hidden_dim)
        self.last = Activations("last", config.dim, 1)
        self.last_normed = Activations("last_normed", config.dim, 1)
        self.logits = Activations("logits", config.vocab_size, 1)


@dataclass(frozen=True)
class Rotation:
    """How the positions of keys are told apart: each pair of elements is turned by position times frequency.

    Attributes:
        frequencies: (n_pairs,) float64, radians per position.
        pair_step: from the first element of a pair to that of the next, in elements.
        pair_distance: from the first element of a pair to its second.
    """

    frequencies: np.ndarray[tuple[int], np.dtype[np.float64]]
    pair_step: int
    pair_distance: int


@dataclass(frozen=True)
class Decoder:
    """Everything ``compose`` may refer to."""

    plan: Plan
    config: ModelConfig
    weights: Weights
    cache: KVCache
    buffers: DecoderBuffers


def embedding(d: Decoder) -> None:
    """x = rows of the embedding; and the angles of the step's positions, which all layers use."""
    d.plan.phase = "embedding"
    d.plan.embed(d.weights["token_embd.weight"], d.buffers.x)
    d.plan.angles(rope_frequencies(d.config, d.weights), d.buffers.angles)
    d.plan.barrier()


def rope_frequencies(config: ModelConfig, weights: Weights) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Radians per position of each rotated pair: (rope_dim // 2,) float64.

    Linear scaling stretches positions; ``rope_freqs`` divides each frequency by its own factor (Llama 3.1).
    """
    pairs = np.arange(0, config.rope_dim, 2, dtype=np.float64)
    frequencies = config.rope_theta ** (-pairs / config.rope_dim) / config.rope_scaling_factor
    if weights.get("rope_freqs.weight"):
        frequencies = frequencies / weights.rows("rope_freqs.weight").view(np.float32)[0].astype(np.float64)
    return frequencies


def self_attention(d: Decoder, layer: int, *, neighbours: bool) -> None:
    """x += output(attention(q, k, v)), with grouped queries.

    Args:
        neighbours: rope pairs elements 2i and 2i + 1 (llama's order in GGUF), else i and i + rope_dim / 2.
    """
    plan, config, b = d.plan, d.config, d.buffers
    wq, wk, wv = (_weight(d, layer, f"attn_{name}.weight") for name in "qkv")
    plan.phase = "norms"
    plan.rmsnorm(b.x, _weight(d, layer, "attn_norm.weight"), b.normed, config.norm_eps)
    plan.quantize(b.normed, wq, wk, wv)
    plan.barrier()
    plan.phase = "qkv"
    plan.matmul(wq, b.normed, b.q, add=_optional(d, layer, "attn_q.bias"))
    plan.matmul(wk, b.normed, b.k, add=_optional(d, layer, "attn_k.bias"))
    plan.matmul(wv, b.normed, b.v, add=_optional(d, layer, "attn_v.bias"))
    plan.barrier()
    plan.phase = "attention"
    for heads, norm in ((b.q, "attn_q_norm.weight"), (b.k, "attn_k_norm.weight")):
        plan.rope(heads, b.angles, config.head_dim, neighbours, _optional(d, layer, norm), config.norm_eps)
    plan.store_kv(d.cache, layer, b.k, b.v, config.head_dim)
    plan.barrier()
    plan.attention(d.cache, layer, b.q, b.attended, config.head_dim, config.n_kv_heads)
    plan.barrier()
    plan.phase = "attention output"
    wo = _weight(d, layer, "attn_output.weight")
    _quantize(plan, b.attended, wo)
    plan.matmul(wo, b.attended, b.x, add=b.x)
    plan.barrier()


def feed_forward(d: Decoder, layer: int) -> None:
    """x += down(silu(gate(x)) * up(x))."""
    plan, b = d.plan, d.buffers
    w_gate, w_up, w_down = (_weight(d, layer, f"ffn_{name}.weight") for name in ("gate", "up", "down"))
    plan.phase = "norms"
    plan.rmsnorm(b.x, _weight(d, layer, "ffn_norm.weight"), b.normed, d.config.norm_eps)
    plan.quantize(b.normed, w_gate, w_up)
    plan.barrier()
    plan.phase = "feed-forward"
    plan.matmul(w_gate, b.normed, b.gate)
    plan.matmul(w_up, b.normed, b.up)
    plan.barrier()
    plan.swiglu(b.gate, b.up)
    plan.quantize(b.gate, w_down)
    plan.barrier()
    plan.matmul(w_down, b.gate, b.x, add=b.x)
    plan.barrier()


def output_head(d: Decoder) -> None:
    """logits = output(norm(x)) of one column; without a tensor of its own, the embedding is the output."""
    plan, b = d.plan, d.buffers
    output = d.weights.get("output.weight") or d.weights["token_embd.weight"]
    plan.phase = "output head"
    plan.take_column(b.x, b.last)
    plan.barrier()
    plan.rmsnorm(b.last, d.weights["output_norm.weight"], b.last_normed, d.config.norm_eps)
    plan.quantize(b.last_normed, output)
    plan.barrier()
    plan.matmul(output, b.last_normed, b.logits)
    plan.barrier()


def _quantize(plan: Plan, x: Activations, reader: Tensor) -> None:
    """Quantise between two barriers, if the reader wants int8 at all."""
    before = len(plan.operations)
    plan.quantize(x, reader)
    if len(plan.operations) > before:
        plan.barrier()


def _weight(d: Decoder, layer: int, name: str) -> Tensor:
    return d.weights[f"blk.{layer}.{name}"]


def _optional(d: Decoder, layer: int, name: str) -> Tensor | None:
    return d.weights.get(f"blk.{layer}.{name}")

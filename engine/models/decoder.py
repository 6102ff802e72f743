"""The steps that decoder-only architectures are put together from, as operations of a plan.

A step takes its part of a layer, reads one buffer and returns another; what a branch adds to the residual stream is a
step of its own, so that norms behind a branch and branches side by side compose. Speed lives in the kernels and in the
plan, which lets a matrix product add by itself, never here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.plan.buffers import Activations, Buffers

if TYPE_CHECKING:
    from engine.cache.kv_cache import KVCache
    from engine.cache.rotation import Rotation
    from engine.config import Attention, Dense, ModelConfig, Rope
    from engine.plan.plan import Plan
    from engine.weights.weights import Tensor, Weights

NORMS_BEHIND = ("post_attention_norm.weight", "post_ffw_norm.weight")
"""Norms behind the two branches of a layer."""


@dataclass(frozen=True)
class Decoder:
    """Everything ``compose`` may refer to.

    Attributes:
        rotations: what each rope of the model turns by.
        n_logits: tokens of a walk whose logits are wanted: one, chosen by the step, or all.
    """

    plan: Plan
    config: ModelConfig
    weights: Weights
    cache: KVCache
    buffers: Buffers
    rotations: Mapping[Rope, Rotation]
    n_logits: int = 1

    @property
    def x(self) -> Activations:
        """The residual stream."""
        return self.buffers.vector("x", self.config.dim)

    def weight(self, layer: int, name: str) -> Tensor:
        """A tensor of a layer."""
        return self.weights[f"blk.{layer}.{name}"]

    def optional(self, layer: int, name: str) -> Tensor | None:
        """A tensor that a layer may do without."""
        return self.weights.get(f"blk.{layer}.{name}")

    def angles(self, rope: Rope) -> Activations:
        """cos and sin of rope.dim / 2 pairs."""
        return self.buffers.vector(f"angles {self.config.ropes.index(rope)}", rope.dim)


def all_layers(d: Decoder) -> None:
    """Token ids to residual stream, for layers whose branches follow each other."""
    embedding(d)
    for number, layer in enumerate(d.config.layers):
        x = norm(d, number, "attn_norm.weight") if layer.norm_before else d.x
        residual(d, self_attention(d, number, layer.mixer, x), _norm_behind(d, number, 0))
        x = norm(d, number, "ffn_norm.weight") if layer.norm_before else d.x
        residual(d, feed_forward(d, number, layer.feed_forward, x), _norm_behind(d, number, 1))


def _norm_behind(d: Decoder, layer: int, branch: int) -> Tensor | None:
    return d.weight(layer, NORMS_BEHIND[branch]) if d.config.layers[layer].norm_behind else None


def embedding(d: Decoder) -> None:
    """x = rows of the embedding; and the angles of the step's positions, which all layers use."""
    d.plan.phase = "embedding"
    d.plan.embed(d.weights["token_embd.weight"], d.x)
    if d.config.embedding_scale != 1.0:
        d.plan.scale(d.x, d.config.embedding_scale)
    for rope in d.config.ropes:
        d.plan.angles(d.rotations[rope].frequencies, d.angles(rope))
    d.plan.barrier()


def norm(d: Decoder, layer: int, name: str) -> Activations:
    """The residual stream, normed for a branch to read."""
    normed = d.buffers.vector("normed", d.config.dim)
    d.plan.phase = "norms"
    d.plan.rmsnorm(d.x, d.weight(layer, name), normed, d.config.norm_eps)
    return normed


def residual(d: Decoder, branch: Activations, behind: Tensor | None = None) -> None:
    """x += branch, normed first if there is a norm behind it; the branch means nothing afterwards."""
    d.plan.add(d.x, branch, behind, d.config.norm_eps)
    d.plan.barrier()


def self_attention(d: Decoder, layer: int, attention: Attention, x: Activations) -> Activations:
    """output(attention(q, k, v)) of x, with grouped queries; biases and norms of heads where the file has them."""
    plan = d.plan
    q, k, v = (
        d.buffers.vector(name, n)
        for name, n in (("q", attention.q_dim), ("k", attention.k_dim), ("v", attention.v_dim))
    )
    wq, wk, wv, wo = (d.weight(layer, f"attn_{name}.weight") for name in ("q", "k", "v", "output"))
    plan.quantize(x, wq, wk, wv)
    plan.barrier()
    plan.phase = "qkv"
    plan.matmul(wq, x, q, d.optional(layer, "attn_q.bias"))
    plan.matmul(wk, x, k, d.optional(layer, "attn_k.bias"))
    plan.matmul(wv, x, v, d.optional(layer, "attn_v.bias"))
    plan.barrier()
    plan.phase = "attention"
    _turn(d, attention, q, d.optional(layer, "attn_q_norm.weight"))
    _turn(d, attention, k, d.optional(layer, "attn_k_norm.weight"))
    plan.store_kv(d.cache, layer, k, v)
    plan.barrier()
    attended = d.buffers.vector("attended", attention.out_dim)
    plan.attention(d.cache, layer, attention, q, attended)
    plan.barrier()
    plan.phase = "attention output"
    return _product(d, wo, attended)


def _turn(d: Decoder, attention: Attention, heads: Activations, norm: Tensor | None) -> None:
    rope = attention.rope
    rotation, angles = (d.rotations[rope], d.angles(rope)) if rope is not None else (None, None)
    d.plan.rope(heads, attention.key_dim, rotation, angles, norm, d.config.norm_eps)


def feed_forward(d: Decoder, layer: int, dense: Dense, x: Activations) -> Activations:
    """down(function(gate(x)) * up(x)) with the layer's gate function."""
    plan = d.plan
    gate, up = (d.buffers.vector(name, dense.hidden_dim) for name in ("gate", "up"))
    w_gate, w_up, w_down = (d.weight(layer, f"ffn_{name}.weight") for name in ("gate", "up", "down"))
    plan.quantize(x, w_gate, w_up)
    plan.barrier()
    plan.phase = "feed-forward"
    plan.matmul(w_gate, x, gate)
    plan.matmul(w_up, x, up)
    plan.barrier()
    plan.gate(dense.gate, gate, up)
    plan.quantize(gate, w_down)
    plan.barrier()
    return _product(d, w_down, gate, is_quantized=True)


def _product(d: Decoder, weight: Tensor, x: Activations, is_quantized: bool = False) -> Activations:
    """weight @ x as a branch, for x that lies behind a barrier."""
    branch = d.buffers.vector("branch", weight.n_rows)
    if not is_quantized:
        before = len(d.plan.operations)
        d.plan.quantize(x, weight)
        if len(d.plan.operations) > before:  # the reader wants int8
            d.plan.barrier()
    d.plan.matmul(weight, x, branch)
    d.plan.barrier()
    return branch


def output_head(d: Decoder) -> None:
    """logits = output(norm(x)); without a tensor of its own, the embedding is the output."""
    plan, buffers, dim = d.plan, d.buffers, d.config.dim
    output = d.weights.get("output.weight") or d.weights["token_embd.weight"]
    plan.phase = "output head"
    x = d.x
    if d.n_logits == 1:
        x = buffers.vector("last", dim, 1)
        plan.take_column(d.x, x)
        plan.barrier()
    normed = buffers.vector("last_normed", dim, d.n_logits)
    plan.rmsnorm(x, d.weights["output_norm.weight"], normed, d.config.norm_eps)
    plan.quantize(normed, output)
    plan.barrier()
    logits = buffers.vector("logits", d.config.vocab_size, d.n_logits)
    plan.matmul(output, normed, logits)
    plan.barrier()
    if d.config.logit_soft_cap is not None:
        plan.soft_cap(logits, d.config.logit_soft_cap)
        plan.barrier()

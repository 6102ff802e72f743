"""Plain NumPy twins of what the engine compiles, written to be read."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, quants

Array = np.ndarray[Any, np.dtype[np.float64]]


def rmsnorm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def rope(heads: Array, positions: Array, frequencies: Array, neighbours: bool) -> Array:
    """heads: (n, n_heads, head_dim)."""
    n_pairs = len(frequencies)
    angle = positions[:, None, None] * frequencies
    if neighbours:
        a, b = slice(0, 2 * n_pairs, 2), slice(1, 2 * n_pairs, 2)
    else:
        a, b = slice(0, n_pairs), slice(n_pairs, 2 * n_pairs)
    turned = heads.copy()
    turned[..., a] = heads[..., a] * np.cos(angle) - heads[..., b] * np.sin(angle)
    turned[..., b] = heads[..., a] * np.sin(angle) + heads[..., b] * np.cos(angle)
    return turned


def causal_attention(q: Array, k: Array, v: Array) -> Array:
    """q: (n, n_heads, head_dim); k, v: (n, n_kv_heads, head_dim)."""
    n, n_heads, head_dim = q.shape
    group = n_heads // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(head_dim)
    scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    return np.einsum("hij,jhd->ihd", softmax(scores), v)


class Reference:
    """The whole forward pass of a decoder in float64, over a file's dequantised weights."""

    def __init__(self, checked: Any) -> None:
        self.config, self.weights = checked.config, checked.weights

    def tensor(self, name: str) -> Array | None:
        found = self.weights.get(name)
        if found is None:
            return None
        kind = GGMLQuantizationType[found.quant]
        values = quants.dequantize(self.weights.rows(name), kind).astype(np.float64)
        return values[0] if found.n_rows == 1 else values

    def project(self, x: Array, name: str) -> Array:
        out = x @ self.tensor(name + ".weight").T
        bias = self.tensor(name + ".bias")
        return out if bias is None else out + bias

    def logits(self, ids: list[int]) -> Array:
        """(n, vocab_size)."""
        c = self.config
        positions = np.arange(len(ids))
        frequencies = c.rope_theta ** (-np.arange(0, c.rope_dim, 2) / c.rope_dim) / c.rope_scaling_factor
        factors = self.tensor("rope_freqs.weight")
        frequencies = frequencies if factors is None else frequencies / factors
        neighbours = c.architecture == "llama"
        x = self.tensor("token_embd.weight")[ids]
        for layer in range(c.n_layers):
            block = f"blk.{layer}."
            h = rmsnorm(x, self.tensor(block + "attn_norm.weight"), c.norm_eps)
            q, k, v = (self.project(h, block + f"attn_{n}").reshape(len(ids), -1, c.head_dim) for n in "qkv")
            if self.tensor(block + "attn_q_norm.weight") is not None:
                q = rmsnorm(q, self.tensor(block + "attn_q_norm.weight"), c.norm_eps)
                k = rmsnorm(k, self.tensor(block + "attn_k_norm.weight"), c.norm_eps)
            q, k = (rope(heads, positions, frequencies, neighbours) for heads in (q, k))
            attended = causal_attention(q, k, v).reshape(len(ids), -1)
            x = x + self.project(attended, block + "attn_output")
            h = rmsnorm(x, self.tensor(block + "ffn_norm.weight"), c.norm_eps)
            hidden = silu(self.project(h, block + "ffn_gate")) * self.project(h, block + "ffn_up")
            x = x + self.project(hidden, block + "ffn_down")
        x = rmsnorm(x, self.tensor("output_norm.weight"), c.norm_eps)
        output = self.tensor("output.weight")
        return x @ (self.tensor("token_embd.weight") if output is None else output).T

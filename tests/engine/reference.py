"""Plain NumPy twins of what the engine compiles, written to be read: parts that architectures'
twins are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, quants

Array = np.ndarray[Any, np.dtype[np.float64]]
Turn = Callable[[Array], Array]


def rmsnorm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def layernorm(x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
    x = x - x.mean(-1, keepdims=True)
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    return normed if bias is None else normed + bias


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def squared_relu(x: Array) -> Array:
    return np.maximum(x, 0) ** 2


def xielu(x: Array, alpha_p: float, alpha_n: float, beta: float, eps: float) -> Array:
    """Return xielu as the model's authors define it, with the parameters as they are trained."""
    above = np.log1p(np.exp(alpha_p))
    below = beta + np.log1p(np.exp(alpha_n))
    return np.where(
        x > 0, above * x * x + beta * x, (np.expm1(np.minimum(x, eps)) - x) * below + beta * x
    )


def yarn_frequencies(
    frequencies: Array, theta: float, factor: float, original: int, fast: float, slow: float
) -> Array:
    """Return each pair's frequency, divided by the factor as far as the pair rotates too rarely
    within the original context."""
    n_pairs = len(frequencies)
    mixed = []
    bounds = [
        2 * n_pairs * np.log(original / (2 * np.pi * turns)) / (2 * np.log(theta))
        for turns in (fast, slow)
    ]
    low = max(0, np.floor(bounds[0]))
    high = min(2 * n_pairs - 1, np.ceil(bounds[1]))
    for pair, frequency in enumerate(frequencies):
        share = 1 - min(1, max(0, (pair - low) / max(0.001, high - low)))
        mixed.append(frequency / factor * (1 - share) + frequency * share)
    return np.array(mixed)


def rope(heads: Array, positions: Array, frequencies: Array, neighbours: bool) -> Array:
    """Rotate heads (n, n_heads, head_dim)."""
    n_pairs = len(frequencies)
    angle = positions[:, None, None] * frequencies
    if neighbours:
        a = slice(0, 2 * n_pairs, 2)
        b = slice(1, 2 * n_pairs, 2)
    else:
        a = slice(0, n_pairs)
        b = slice(n_pairs, 2 * n_pairs)
    turned = heads.copy()
    turned[..., a] = heads[..., a] * np.cos(angle) - heads[..., b] * np.sin(angle)
    turned[..., b] = heads[..., a] * np.sin(angle) + heads[..., b] * np.cos(angle)
    return turned


def _turn(frequencies: Array, neighbours: bool, magnitude: float) -> Turn:
    """Rotate heads at the positions from 0 on, and multiply the rotated elements."""

    def turn(heads: Array) -> Array:
        turned = rope(heads, np.arange(len(heads)), frequencies, neighbours)
        turned[..., : 2 * len(frequencies)] *= magnitude
        return turned

    return turn


def causal_attention(
    q: Array,
    k: Array,
    v: Array,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Array | None = None,
    alibi: float = 0.0,
    n_after: int = 0,
) -> Array:
    """Return attention of q (n, n_heads, head_dim), which is scaled already, over k and v (n,
    n_kv_heads, head_dim); ``n_after`` later positions are visible, too."""
    n, n_heads, _ = q.shape
    group = n_heads // k.shape[1]
    k = np.repeat(k, group, axis=1)
    v = np.repeat(v, group, axis=1)
    scores = q.swapaxes(0, 1) @ k.transpose(1, 2, 0)  # many times as fast as by einsum
    if soft_cap:
        scores = soft_cap * np.tanh(scores / soft_cap)
    distance = np.arange(n)[:, None] - np.arange(n)
    if alibi:
        scores = scores - alibi_slopes(n_heads, alibi)[:, None, None] * distance
    scores = np.where((distance >= -n_after) & (distance < (window or n)), scores, -np.inf)
    if sinks is not None:  # one more column, which has no value
        scores = np.concatenate(
            [scores, np.broadcast_to(sinks[:, None, None], (n_heads, n, 1))], axis=-1
        )
    return (softmax(scores)[..., :n] @ v.swapaxes(0, 1)).swapaxes(0, 1)


def alibi_slopes(n_heads: int, largest: float) -> Array:
    """Return a geometric series of slopes; heads beyond a power of two take every second slope of
    twice as many (arXiv:2108.12409)."""
    n = 2 ** int(np.log2(n_heads))
    between = 2.0 ** (-largest / (2 * n) * np.arange(1, 2 * n + 1))
    return np.concatenate([2.0 ** (-largest / n * np.arange(1, n + 1)), between[::2]])[:n_heads]


def causal_convolution(x: Array, weights: Array) -> Array:
    """Convolve each channel of x (n, channels) with weights (channels, taps); zeros precede the
    first input."""
    taps = weights.shape[1]
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    return sum(padded[j : j + len(x)] * weights[:, j] for j in range(taps))


def delta_net_by_token(q: Array, k: Array, v: Array, beta: Array, log_decay: Array) -> Array:
    """Return the results of a head; q, k: (n, keys), v: (n, values)."""
    out = np.zeros_like(v)
    state = np.zeros((k.shape[1], v.shape[1]))
    for t in range(len(v)):
        state = np.exp(log_decay[t]) * state
        state = state + np.outer(k[t], beta[t] * (v[t] - k[t] @ state))
        out[t] = q[t] @ state
    return out


def mamba_2_by_token(q: Array, k: Array, v: Array, time: Array, log_decay: Array) -> Array:
    """Return the results of a Mamba-2 head, with C, B and x for q, k and v; each token is weighted
    by its time step."""
    out = np.zeros_like(v)
    state = np.zeros((k.shape[1], v.shape[1]))
    for t in range(len(v)):
        state = np.exp(log_decay[t]) * state + np.outer(k[t], time[t] * v[t])
        out[t] = q[t] @ state
    return out


class Twin:
    """Keys and dequantised float64 tensors of a checked file, read without the engine's
    configuration."""

    def __init__(self, checked: Any) -> None:
        self.metadata = checked.gguf.metadata
        self.weights = checked.weights
        self.eps = self.key(
            "attention.layer_norm_rms_epsilon", self.key("attention.layer_norm_epsilon")
        )

    def key(self, name: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.metadata['general.architecture']}.{name}", default)

    @property
    def blocks(self) -> list[str]:
        n_layers = self.key("block_count") - self.key("nextn_predict_layers", 0)
        return [f"blk.{layer}." for layer in range(n_layers)]

    def heads_of(self, key: str, block: str) -> int:
        """Return the number of heads, which a file may give for every layer."""
        value = self.key(key)
        return int(value[self.blocks.index(block)]) if isinstance(value, np.ndarray) else value

    def tensor(self, name: str) -> Array | None:
        entry = self.weights.get(name)
        if entry is None:
            return None
        quant = GGMLQuantizationType[entry.quant]
        values = quants.dequantize(self.weights.rows(name), quant).astype(np.float64)
        return values[0] if entry.n_rows == 1 else values

    def project(self, x: Array, name: str, rows: slice = slice(None)) -> Array:
        """Multiply by a tensor; ``rows`` selects one of several projections that it holds."""
        out = x @ self.tensor(name + ".weight")[rows].T
        bias = self.tensor(name + ".bias")
        return out if bias is None else out + bias.ravel()[rows]

    def norm(self, x: Array, name: str, suffix: str = ".weight") -> Array:
        return rmsnorm(x, self.tensor(name + suffix), self.eps)

    def layer_norm(self, x: Array, name: str) -> Array:
        return layernorm(x, self.tensor(name + ".weight"), self.tensor(name + ".bias"), self.eps)

    def embed(self, ids: list[int]) -> Array:
        return self.tensor("token_embd.weight")[ids]

    def turner(
        self,
        *,
        neighbours: bool,
        theta: float | None = None,
        divisor: float | None = None,
        factors: str = "rope_freqs.weight",
        dim: int | None = None,
    ) -> Turn:
        """Return the rope of the file's keys unless others are given."""
        dim = dim or self.key("rope.dimension_count", self.key("attention.key_length"))
        divisor = divisor or self.key("rope.scaling.factor", 1.0)
        theta = theta or self.key("rope.freq_base", 10000.0)
        frequencies = theta ** (-np.arange(0, dim, 2) / dim) / divisor
        divisors = self.tensor(factors)
        frequencies = frequencies if divisors is None else frequencies / divisors
        return _turn(frequencies, neighbours, self.key("rope.scaling.attn_factor", 1.0))

    def yarn_turner(self, *, neighbours: bool) -> Turn:
        """Return the rope that the file's keys stretch."""
        scaling = "rope.scaling."
        dim = self.key("rope.dimension_count")
        theta = self.key("rope.freq_base")
        factor = self.key(scaling + "factor")
        original = self.key(scaling + "original_context_length")
        betas = (
            self.key(scaling + "yarn_beta_fast", 32.0),
            self.key(scaling + "yarn_beta_slow", 1.0),
        )
        frequencies = yarn_frequencies(
            theta ** (-np.arange(0, dim, 2) / dim), theta, factor, original, *betas
        )
        multiplier = self.key(scaling + "yarn_log_multiplier", 0.0)
        magnitude = (1 + 0.1 * np.log(factor)) / (1 + 0.1 * multiplier * np.log(factor))
        return _turn(frequencies, neighbours, magnitude)

    def attention(
        self,
        block: str,
        h: Array,
        turn: Turn,
        *,
        has_head_norms: bool = False,
        has_whole_norms: bool = False,
        has_head_layer_norms: bool = False,
        has_turned_norms: bool = False,
        has_gate: bool = False,
        has_query_gates: bool = False,
        bound: float | None = None,
        alibi: float = 0.0,
        query_growth: Array | None = None,
        scale: float | None = None,
        window: int | None = None,
        soft_cap: float | None = None,
        sinks: Array | None = None,
        n_after: int = 0,
    ) -> Array:
        n = len(h)
        n_kv_heads = self.heads_of("attention.head_count_kv", block)
        q, k, v = self.queries_keys_values(block, h, n_kv_heads)
        gate = self.project(h, block + "attn_gate") if has_gate else None
        if has_query_gates:
            halves = q.reshape(n, -1, 2, k.shape[-1] // n_kv_heads)
            q = halves[:, :, 0]
            gate = halves[:, :, 1].reshape(n, -1)
        if bound is not None:
            q, k, v = (np.clip(x, -bound, bound) for x in (q, k, v))
        if has_whole_norms:
            q = self.norm(q, block + "attn_q_norm")
            k = self.norm(k, block + "attn_k_norm")
        k = k.reshape(n, n_kv_heads, -1)
        v = v.reshape(n, n_kv_heads, -1)
        q = q.reshape(n, -1, k.shape[-1])
        if has_head_norms:
            q = self.norm(q, block + "attn_q_norm")
            k = self.norm(k, block + "attn_k_norm")
        if has_head_layer_norms:
            q, k = (
                self.layer_norm(x, block + f"attn_{letter}_norm")
                for x, letter in ((q, "q"), (k, "k"))
            )
        q = turn(q)
        k = turn(k)
        if has_turned_norms:
            q = self.norm(q, block + "attn_q_norm")
            k = self.norm(k, block + "attn_k_norm")
        q = q * (scale or k.shape[-1] ** -0.5)
        q = q if query_growth is None else q * query_growth[:n, None, None]
        attended = causal_attention(q, k, v, window, soft_cap, sinks, alibi, n_after).reshape(n, -1)
        attended = attended if gate is None else attended / (1 + np.exp(-gate))
        return self.project(attended, block + "attn_output")

    def queries_keys_values(self, block: str, h: Array, n_kv_heads: int) -> list[Array]:
        """Return all heads of a layer side by side, from one tensor if the file has one."""
        if self.tensor(block + "attn_qkv.weight") is None:
            return [self.project(h, block + f"attn_{letter}") for letter in "qkv"]
        kv_dim = n_kv_heads * self.key("attention.key_length")
        k = -2 * kv_dim
        v = -kv_dim
        rows = slice(None, k), slice(k, v), slice(v, None)
        return [self.project(h, block + "attn_qkv", row_range) for row_range in rows]

    def fused_feed_forward(self, block: str, h: Array) -> Array:
        """Compute a feed-forward with gate and up in one tensor, the gate first."""
        n = self.key("feed_forward_length")
        gate, up = (self.project(h, block + "ffn_up", rows) for rows in (slice(n), slice(n, None)))
        return self.project(silu(gate) * up, block + "ffn_down")

    def plain_feed_forward(self, block: str, h: Array, function: Callable[[Array], Array]) -> Array:
        """Compute a feed-forward without a gate."""
        return self.project(function(self.project(h, block + "ffn_up")), block + "ffn_down")

    def feed_forward(self, block: str, h: Array, gate: Callable[[Array], Array] = silu) -> Array:
        hidden = gate(self.project(h, block + "ffn_gate")) * self.project(h, block + "ffn_up")
        return self.project(hidden, block + "ffn_down")

    def pre_norm_layers(
        self,
        x: Array,
        attention: Callable[[str, Array], Array],
        feed_forward: Callable[[str, Array], Array] | None = None,
        ffn_norm: str = "ffn_norm",
    ) -> Array:
        """Run layers whose branches read the normed residual stream, one after the other."""
        for block in self.blocks:
            x = x + attention(block, self.norm(x, block + "attn_norm"))
            x = x + (feed_forward or self.feed_forward)(block, self.norm(x, block + ffn_norm))
        return x

    def routes(
        self,
        block: str,
        h: Array,
        *,
        score: str = "softmax",
        is_renormalised: bool = False,
        scale: float = 1.0,
    ) -> Array:
        """Return the weights of each token's experts: (n, n_experts), 0 for experts that are not
        chosen."""
        logits = self.project(h, block + "ffn_gate_inp")
        n_experts = self.key("expert_count")
        n_used = self.key("expert_used_count")
        n_groups = self.key("expert_group_count", 1)
        n_groups_used = self.key("expert_group_used_count", 1)
        bias = self.tensor(block + "exp_probs_b.bias")
        weights = np.zeros_like(logits)
        for token, row in enumerate(logits):
            values = {"softmax": softmax(row), "sigmoid": 1 / (1 + np.exp(-row)), "chosen": row}[
                score
            ]
            ranking = values if bias is None else values + bias
            if n_groups > 1:
                groups = ranking.reshape(n_groups, -1)
                best = np.argsort(-np.sort(groups, axis=1)[:, -2:].sum(1), kind="stable")[
                    :n_groups_used
                ]
                ranking = np.where(
                    np.isin(np.arange(n_experts) // groups.shape[1], best), ranking, -np.inf
                )
            chosen = np.argsort(-ranking, kind="stable")[:n_used]
            shares = softmax(values[chosen]) if score == "chosen" else values[chosen]
            weights[token, chosen] = (
                shares / (max(shares.sum(), 2.0**-14) if is_renormalised else 1) * scale
            )
        return weights

    def experts(
        self,
        block: str,
        h: Array,
        weights: Array,
        activate: Callable[[Array, Array], Array] | None = None,
    ) -> Array:
        """Return the weighted sum of the results of the chosen experts for h."""
        out = np.zeros_like(h)
        n_experts = self.key("expert_count")
        fused = self.tensor(block + "ffn_gate_up_exps.weight")
        activate = activate or (lambda gate, up: silu(gate) * up)
        for expert in range(n_experts):
            tokens = np.flatnonzero(weights[:, expert])
            if not len(tokens):
                continue

            def product(
                x: Array, name: str, index: int = 0, n_parts: int = 1, expert: int = expert
            ) -> Array:
                n = self.weights[f"{block}ffn_{name}_exps.weight"].n_rows // n_experts
                begin = expert * n + index * n // n_parts
                return self.project(
                    x, f"{block}ffn_{name}_exps", slice(begin, begin + n // n_parts)
                )

            x = h[tokens]
            if self.weights.get(f"{block}ffn_gate_exps.weight") is None and fused is None:
                gate = up = product(x, "up")
            elif fused is None:
                gate = product(x, "gate")
                up = product(x, "up")
            else:
                gate = product(x, "gate_up", 0, 2)
                up = product(x, "gate_up", 1, 2)
            out[tokens] += weights[tokens, expert, None] * product(activate(gate, up), "down")
        return out

    def shared_expert(self, block: str, h: Array) -> Array:
        """Compute the feed-forward that every token passes in addition to its experts."""
        hidden = silu(self.project(h, block + "ffn_gate_shexp")) * self.project(
            h, block + "ffn_up_shexp"
        )
        return self.project(hidden, block + "ffn_down_shexp")

    def head(self, x: Array) -> Array:
        return self.unembed(self.norm(x, "output_norm"))

    def unembed(self, normed: Array) -> Array:
        """Return logits, by the embedding if the file has no output matrix."""
        return self.project(
            normed, "token_embd" if self.tensor("output.weight") is None else "output"
        )

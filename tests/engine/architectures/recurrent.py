"""Recurrent layers: tiny models, and twins that compute the recurrences literally."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tests.engine import tiny_gguf
from tests.engine.reference import (
    Array,
    Twin,
    causal_convolution,
    delta_net_by_token,
    mamba_2_by_token,
    rmsnorm,
    silu,
)

OF_ATTENTION = "q", "k", "v", "output", "q_norm", "k_norm"
CONVOLVED = 3
N_KEYS = 2
N_VALUES = 4
TAPS = 4
"""Taps of separate convolutions, heads of delta nets, and taps before recurrences."""


def drop_attention(described: tiny_gguf.TinyGGUF, layers: Iterable[int]) -> None:
    """Remove the attention tensors from layers."""
    described.drop_tensors(
        *(f"blk.{number}.attn_{name}.weight" for number in layers for name in OF_ATTENTION)
    )


def kv_heads_in(described: tiny_gguf.TinyGGUF, attends: list[bool]) -> None:
    """Give key heads only to the layers that attend."""
    key = f"{described.value('general.architecture')}.attention.head_count_kv"
    described.set(key, np.array(attends, "<u4") * np.uint32(described.value(key)))


def lfm2(name: str, **arguments: Any) -> tiny_gguf.TinyGGUF:
    """Return a model in which every other layer, from the second on, is a convolution."""
    described = tiny_gguf.decoder(name, **arguments)
    quant = arguments.get("quant", "F32")
    n_layers = described.value(f"{name}.block_count")
    dim = described.value(f"{name}.embedding_length")
    rng = np.random.default_rng(5)
    described.set(f"{name}.shortconv.l_cache", CONVOLVED)
    kv_heads_in(described, [number % 2 == 0 for number in range(n_layers)])
    drop_attention(described, range(1, n_layers, 2))
    for block in (f"blk.{number}.shortconv." for number in range(1, n_layers, 2)):
        described.tensors += [
            tiny_gguf.quantised(block + "in_proj.weight", quant, 3 * dim, dim, 1 / dim**0.5, rng),
            tiny_gguf.quantised(block + "out_proj.weight", quant, dim, dim, 0.3 / dim**0.5, rng),
        ]
        described.add_rows(block + "conv.weight", 0.6 * rng.standard_normal((dim, CONVOLVED)))
    described.rename("output_norm", "token_embd_norm")
    return described


def convolution(twin: Twin, block: str, h: Array) -> Array | None:
    """Return the result of a convolution; None if the layer has none."""
    weights = twin.tensor(block + "shortconv.conv.weight")
    if weights is None:
        return None
    b, c, x = np.split(twin.project(h, block + "shortconv.in_proj"), 3, axis=1)
    return twin.project(c * causal_convolution(b * x, weights), block + "shortconv.out_proj")


def granitehybrid(
    name: str, n_groups: int = 2, head_dim: int = 40, **arguments: Any
) -> tiny_gguf.TinyGGUF:
    """Return a model in which every other layer, from the second on, is Mamba-2."""
    described = tiny_gguf.decoder(name, **arguments)
    n_layers = described.value(f"{name}.block_count")
    kv_heads_in(described, [number % 2 == 0 for number in range(n_layers)])
    drop_attention(described, range(1, n_layers, 2))
    add_mamba2(
        described,
        arguments.get("quant", "F32"),
        range(1, n_layers, 2),
        n_groups=n_groups,
        head_dim=head_dim,
    )
    return described


def nemotron_h(name: str, order: str = "amf", **arguments: Any) -> tiny_gguf.TinyGGUF:
    """Return a model with layers of three types by their letters: attention, Mamba-2 and
    feed-forward."""
    described = tiny_gguf.decoder(name, **{"seed": 1, **arguments})
    n_layers, hidden_dim = (
        described.value(f"{name}.{key}") for key in ("block_count", "feed_forward_length")
    )
    kinds = [order[number % 3] for number in range(n_layers)]
    kv_heads_in(described, [layer_kind == "a" for layer_kind in kinds])
    widths = [hidden_dim if layer_kind == "f" else 0 for layer_kind in kinds]
    described.set(f"{name}.feed_forward_length", np.array(widths, "<u4"))
    drop_attention(
        described, [number for number, layer_kind in enumerate(kinds) if layer_kind != "a"]
    )
    described.drop_tensors("ffn_gate.weight", "ffn_norm.weight")
    for block in (f"blk.{number}." for number, layer_kind in enumerate(kinds) if layer_kind != "f"):
        described.drop_tensors(block + "ffn_up.weight", block + "ffn_down.weight")
    add_mamba2(described, arguments.get("quant", "F32"), range(order.index("m"), n_layers, 3))
    return described


def falcon_h1(
    name: str, mamba: dict[str, Any] | None = None, ffn_norm: str = "ffn_norm", **arguments: Any
) -> tiny_gguf.TinyGGUF:
    """Return a model in which every layer has both attention and Mamba-2.

    ``mamba`` holds the arguments of ``add_mamba2``; ``ffn_norm`` is the name of that norm.
    """
    described = tiny_gguf.decoder(name, **arguments)
    layers = range(described.value(f"{name}.block_count"))
    add_mamba2(described, arguments.get("quant", "F32"), layers, **(mamba or {"has_norm": False}))
    described.rename("ffn_norm.weight", ffn_norm)
    return described


def add_mamba2(
    described: tiny_gguf.TinyGGUF,
    quant: str,
    layers: Iterable[int],
    *,
    n_heads: int = 4,
    head_dim: int = 40,
    n_groups: int = 2,
    has_norm: bool = True,
) -> None:
    """Add Mamba-2 to layers and its keys to the file; widths suit types with blocks of 256."""
    architecture = described.value("general.architecture")
    rng = np.random.default_rng(5)
    dim = described.value(f"{architecture}.embedding_length")
    key_dim = 24
    if dim % 256 == 0:
        head_dim = 64
    elif quant != "F32":
        head_dim = 32
    inner = n_heads * head_dim
    channels = inner + 2 * n_groups * key_dim
    for key, value in {
        "conv_kernel": TAPS, "inner_size": inner, "state_size": key_dim, "time_step_rank": n_heads,
        "group_count": n_groups,
    }.items():  # fmt: skip
        described.set(f"{architecture}.ssm.{key}", value)
    for block in (f"blk.{number}." for number in layers):
        described.tensors += [
            tiny_gguf.quantised(
                block + "ssm_in.weight", quant, inner + channels + n_heads, dim, dim**-0.5, rng
            ),
            tiny_gguf.quantised(block + "ssm_out.weight", quant, dim, inner, 0.3 / inner**0.5, rng),
        ]
        described.add_rows(block + "ssm_conv1d.weight", 0.6 * rng.standard_normal((channels, TAPS)))
        described.add_vector(block + "ssm_conv1d.bias", 0.2 * rng.standard_normal(channels))
        described.add_vector(block + "ssm_dt.bias", -1.5 + 0.5 * rng.standard_normal(n_heads))
        described.add_rows(
            block + "ssm_a", -np.exp(rng.uniform(np.log(0.05), np.log(2), (n_heads, 1)))
        )
        described.add_rows(block + "ssm_d", 1 + 0.5 * rng.standard_normal((n_heads, 1)))
        if has_norm:
            norms = 1 + 0.2 * rng.standard_normal((n_groups, inner // n_groups))
            described.add_rows(block + "ssm_norm.weight", norms)


def mamba2(twin: Twin, block: str, h: Array) -> Array | None:
    """Return the result of Mamba-2; None if the layer has none."""
    if twin.tensor(block + "ssm_a") is None:
        return None
    n = len(h)
    n_heads = twin.key("ssm.time_step_rank")
    n_groups = twin.key("ssm.group_count")
    inner = twin.key("ssm.inner_size")
    key_dim = twin.key("ssm.state_size")
    z, mixed, time = np.split(twin.project(h, block + "ssm_in"), [inner, -n_heads], axis=1)
    mixed = causal_convolution(mixed, twin.tensor(block + "ssm_conv1d.weight"))
    bias = twin.tensor(block + "ssm_conv1d.bias")
    if bias is not None:
        mixed = mixed + bias
    mixed = silu(mixed)
    x, b, c = np.split(mixed, [inner, inner + n_groups * key_dim], axis=1)
    x = x.reshape(n, n_heads, -1)
    b = b.reshape(n, n_groups, -1)
    c = c.reshape(n, n_groups, -1)
    time = np.log1p(np.exp(time + twin.tensor(block + "ssm_dt.bias")))
    a, d = (twin.tensor(block + name).reshape(-1) for name in ("ssm_a", "ssm_d"))
    out = d[:, None] * x
    for head in range(n_heads):
        group = head // (n_heads // n_groups)
        rates = (time[:, head], time[:, head] * a[head])
        out[:, head] += mamba_2_by_token(c[:, group], b[:, group], x[:, head], *rates)
    out = out.reshape(n, inner) * silu(z)
    norm = twin.tensor(block + "ssm_norm.weight")
    if norm is not None:
        norm = norm.reshape(n_groups, -1)
        out = rmsnorm(out.reshape(n, n_groups, -1), norm, twin.eps).reshape(n, inner)
    return twin.project(out, block + "ssm_out")


def qwen35(name: str, recurrent: list[bool] | None = None, **arguments: Any) -> tiny_gguf.TinyGGUF:
    """Return a model with delta nets; half of each head is rotated.

    The delta nets are every other layer from the second on, or the layers in ``recurrent``.
    """
    described = tiny_gguf.decoder(name, **arguments)
    quant = arguments.get("quant", "F32")
    n_layers = described.value(f"{name}.block_count")
    dim = described.value(f"{name}.embedding_length")
    head_dim = described.value(f"{name}.attention.key_length")
    rows = 2 * described.value(f"{name}.attention.head_count") * head_dim
    recurrent = recurrent or [number % 2 == 1 for number in range(n_layers)]
    described.set(f"{name}.rope.dimension_count", head_dim // 2)
    described.set(f"{name}.attention.recurrent_layers", np.array(recurrent))
    _add_delta_nets(described, quant, [number for number in range(n_layers) if recurrent[number]])
    rng = np.random.default_rng(6)
    for queries in (
        f"blk.{number}.attn_q.weight" for number in range(n_layers) if not recurrent[number]
    ):
        described.drop_tensors(queries)
        described.tensors.append(
            tiny_gguf.quantised(queries, quant, rows, dim, 0.8 / dim**0.5, rng)
        )
    described.rename("ffn_norm", "post_attention_norm")
    return described


def _add_delta_nets(described: tiny_gguf.TinyGGUF, quant: str, layers: list[int]) -> None:
    """Replace attention by delta nets and add their keys to the file."""
    architecture = described.value("general.architecture")
    rng = np.random.default_rng(5)
    dim = described.value(f"{architecture}.embedding_length")
    width = max(32, dim // N_VALUES)
    inner = N_VALUES * width
    channels = (2 * N_KEYS + N_VALUES) * width
    for key, value in {
        "conv_kernel": TAPS, "inner_size": inner, "state_size": width, "time_step_rank": N_VALUES,
        "group_count": N_KEYS,
    }.items():  # fmt: skip
        described.set(f"{architecture}.ssm.{key}", value)
    drop_attention(described, layers)
    rows = {"attn_qkv": channels, "attn_gate": inner, "ssm_beta": N_VALUES, "ssm_alpha": N_VALUES}
    for block in (f"blk.{number}." for number in layers):
        described.tensors += [
            *(
                tiny_gguf.quantised(f"{block}{name}.weight", quant, n, dim, dim**-0.5, rng)
                for name, n in rows.items()
            ),
            tiny_gguf.quantised(block + "ssm_out.weight", quant, dim, inner, 0.3 / inner**0.5, rng),
        ]
        described.add_rows(block + "ssm_conv1d.weight", 0.6 * rng.standard_normal((channels, TAPS)))
        described.add_vector(block + "ssm_dt.bias", -1.5 + 0.5 * rng.standard_normal(N_VALUES))
        described.add_vector(
            block + "ssm_a", -np.exp(rng.uniform(np.log(0.05), np.log(2), N_VALUES))
        )
        described.add_vector(block + "ssm_norm.weight", 1 + 0.2 * rng.standard_normal(width))


def delta_net(twin: Twin, block: str, h: Array) -> Array | None:
    """Return the result of a delta net; None if the layer has none.

    Rates in one tensor belong to neighbouring key heads.
    """
    if twin.tensor(block + "ssm_a") is None:
        return None
    n = len(h)
    n_keys = twin.key("ssm.group_count")
    n_values = twin.key("ssm.time_step_rank")
    width = twin.key("ssm.state_size")
    is_grouped = twin.tensor(block + "ssm_ba.weight") is not None
    mixed = silu(
        causal_convolution(
            twin.project(h, block + "attn_qkv"), twin.tensor(block + "ssm_conv1d.weight")
        )
    )
    q, k, v = np.split(mixed.reshape(n, -1, width), [n_keys, 2 * n_keys], axis=1)
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + twin.eps) for x in (q, k))
    if is_grouped:
        rates = twin.project(h, block + "ssm_ba").reshape(n, n_keys, 2, -1)
        beta, alpha = (rates[:, :, index].reshape(n, -1) for index in (0, 1))
    else:
        beta, alpha = (twin.project(h, block + name) for name in ("ssm_beta", "ssm_alpha"))
    beta = 1 / (1 + np.exp(-beta))
    time = np.log1p(np.exp(alpha + twin.tensor(block + "ssm_dt.bias")))
    log_decay = time * twin.tensor(block + "ssm_a")
    out = np.zeros_like(v)
    for head in range(n_values):
        key_head = head // (n_values // n_keys) if is_grouped else head % n_keys
        queries = q[:, key_head] * width**-0.5
        out[:, head] = delta_net_by_token(
            queries, k[:, key_head], v[:, head], beta[:, head], log_decay[:, head]
        )
    gate = silu(twin.project(h, block + "attn_gate")).reshape(v.shape)
    normed = rmsnorm(out, twin.tensor(block + "ssm_norm.weight"), twin.eps) * gate
    return twin.project(normed.reshape(n, -1), block + "ssm_out")

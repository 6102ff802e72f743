"""The gemma4 architecture: twin, tiny model, layers that share keys and values, and what stays in the file."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.gguf.ggml_types import TYPES_BY_NAME
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin, causal_attention, gelu, rmsnorm

WINDOW = 6
KEY = "gemma4.attention."


def tiny(
    *,
    quant: str = "F32",
    n_layers: int = 4,
    n_kv_heads: int = 2,
    slides: list[bool] | None = None,
    shared: int | None = None,
    per_layer: bool = True,
    seed: int = 0,
    **arguments: Any,
) -> tiny_gguf.TinyGGUF:
    """Every second layer slides, with half the heads, of half the width; from the third on layers store nothing.

    Files carry keys and values of layers that do not read them; the first layer with no window has no values.
    """
    slides = [number % 2 == 0 for number in range(n_layers)] if slides is None else slides
    shared = max(0, n_layers - 2) if shared is None else shared
    arguments = {"vocabulary": "spm", "head_norms": True, "norms_behind": True, **arguments}
    described = tiny_gguf.decoder(
        "gemma4", quant, n_layers=n_layers, n_kv_heads=n_kv_heads, seed=seed, tied=True, **arguments
    )
    dim, width = (described.value(f"gemma4.{key}") for key in ("embedding_length", "attention.key_length"))
    n_heads, rng = described.value(KEY + "head_count"), np.random.default_rng(seed + 1)
    kv_heads = [max(1, n_kv_heads // 2) if one else n_kv_heads for one in slides]

    def matrix(name: str, rows: int, cols: int) -> None:
        if any(one.name == name for one in described.tensors):
            described.drop_tensor(name)
        described.tensors.append(tiny_gguf.quantised(name, quant, rows, cols, 1 / cols**0.5, rng))

    def vector(name: str, n: int, mean: float = 1.0) -> None:
        if any(one.name == name for one in described.tensors):
            described.drop_tensor(name)
        described.add_vector(name, mean + 0.1 * rng.standard_normal(n))

    for number, is_sliding in enumerate(slides):
        block, each = f"blk.{number}.", width // 2 if is_sliding else width
        for letter, heads in (("q", n_heads), ("k", kv_heads[number]), ("v", kv_heads[number])):
            matrix(f"{block}attn_{letter}.weight", heads * each, dim)
        matrix(block + "attn_output.weight", dim, n_heads * each)
        vector(block + "attn_q_norm.weight", each)
        vector(block + "attn_k_norm.weight", each)
    if slides.count(False):
        described.drop_tensor(f"blk.{slides.index(False)}.attn_v.weight")
        n_turned = width // 4
        described.add_vector("rope_freqs.weight", np.r_[np.ones(n_turned), np.full(width // 2 - n_turned, 1e30)])
    described.set(KEY + "head_count_kv", np.array(kv_heads, "<u4"))
    described.set(KEY + "sliding_window", WINDOW)
    described.set(KEY + "sliding_window_pattern", np.array(slides))
    described.set(KEY + "shared_kv_layers", shared)
    for key, value in {
        "attention.key_length_swa": width // 2, "attention.value_length_swa": width // 2,
        "rope.dimension_count_swa": width // 2, "rope.freq_base": 1000.0, "rope.freq_base_swa": 50.0,
        "final_logit_softcapping": 0.5,
    }.items():  # fmt: skip
        described.set(f"gemma4.{key}", value)
    for number in range(n_layers):
        vector(f"blk.{number}.layer_output_scale.weight", 1, 0.8)
    each = max(32, TYPES_BY_NAME[quant].block_size) if per_layer else 0
    described.set("gemma4.embedding_length_per_layer_input", each)
    if each:
        n_vocab = described.tensor("token_embd.weight").dims[1]
        described.tensors.append(
            tiny_gguf.quantised("per_layer_token_embd.weight", quant, n_vocab, n_layers * each, each**-0.5, rng)
        )
        matrix("per_layer_model_proj.weight", n_layers * each, dim)
        vector("per_layer_proj_norm.weight", each)
        for number in range(n_layers):
            matrix(f"blk.{number}.inp_gate.weight", each, dim)
            matrix(f"blk.{number}.proj.weight", dim, each)
            vector(f"blk.{number}.post_norm.weight", dim)
    return described


def inputs_of_layers(twin: Twin, x: Array, ids: list[int]) -> Array:
    """(n_layers, n, width): what each layer adds of the tokens."""
    width = twin.key("embedding_length_per_layer_input")
    projected = (twin.project(x, "per_layer_model_proj") / np.sqrt(x.shape[-1])).reshape(len(ids), -1, width)
    looked_up = twin.tensor("per_layer_token_embd.weight")[ids].reshape(len(ids), -1, width) * np.sqrt(width)
    return ((twin.norm(projected, "per_layer_proj_norm") + looked_up) / np.sqrt(2)).swapaxes(0, 1)


def logits(twin: Twin, ids: list[int]) -> Array:
    x = twin.embed(ids) * np.sqrt(twin.key("embedding_length"))
    slides, n_layers = twin.key("attention.sliding_window_pattern"), len(twin.blocks)
    n_storing = n_layers - twin.key("attention.shared_kv_layers", 0)
    inputs = inputs_of_layers(twin, x, ids) if twin.key("embedding_length_per_layer_input", 0) else None
    stored: dict[int, tuple[Array, Array]] = {}
    for number, block in enumerate(twin.blocks):
        turn = twin.turner(len(ids), neighbours=False)
        width = twin.key("attention.key_length")
        if slides[number]:
            width, base = twin.key("attention.key_length_swa"), twin.key("rope.freq_base_swa", 10000.0)
            turn = twin.turner(len(ids), neighbours=False, theta=base, divisor=1.0, factors="", dim=width)
        h = twin.norm(x, block + "attn_norm")

        def heads(name: str, h: Array = h, block: str = block, width: int = width) -> Array:
            return twin.project(h, block + name).reshape(len(h), -1, width)

        if number < n_storing:
            k = heads("attn_k")
            v = k if twin.tensor(block + "attn_v.weight") is None else heads("attn_v")
            stored[number] = turn(twin.norm(k, block + "attn_k_norm")), rmsnorm(v, np.ones(width), twin.eps)
        source = number if number < n_storing else n_storing - (2 if slides[number] else 1)
        q = turn(twin.norm(heads("attn_q"), block + "attn_q_norm"))
        window = twin.key("attention.sliding_window") if slides[number] else None
        attended = causal_attention(q, *stored[source], window).reshape(len(ids), -1)
        x = x + twin.norm(twin.project(attended, block + "attn_output"), block + "post_attention_norm")
        hidden = twin.feed_forward(block, twin.norm(x, block + "ffn_norm"), gelu)
        x = x + twin.norm(hidden, block + "post_ffw_norm")
        if inputs is not None:
            gated = gelu(twin.project(x, block + "inp_gate")) * inputs[number]
            x = x + twin.norm(twin.project(gated, block + "proj"), block + "post_norm")
        scale = twin.tensor(block + "layer_output_scale.weight")
        x = x if scale is None else x * scale
    found, cap = twin.head(x), twin.key("final_logit_softcapping")
    return cap * np.tanh(found / cap) if cap else found

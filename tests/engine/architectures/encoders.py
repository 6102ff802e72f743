"""Architectures whose tokens attend to later tokens: tiny models, and twins that return a vector
for each token."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.gguf.ggml_types import GGML_TYPES
from tests.engine import tiny_gguf
from tests.engine.architectures.rows import embedding_norm, positions
from tests.engine.reference import Array, Turn, Twin, gelu

WINDOW = 6
"""Width of a window with three positions on each side."""
PERIOD = 2
"""Period of the tiny models' layers with full attention."""


def _begun(
    name: str, quant: str, n_layers: int = 2, context_length: int = 128
) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder(
        name, quant, n_kv_heads=4, n_layers=n_layers, context_length=context_length
    )
    described.set(f"{name}.attention.causal", False)
    described.set(f"{name}.pooling_type", 1)
    described.drop_tensor("output.weight")
    return described


def _post_normed(name: str, quant: str, **arguments: int) -> tiny_gguf.TinyGGUF:
    described = _begun(name, quant, **arguments)
    described.with_layer_norms()
    described.rename(".attn_norm.", ".attn_output_norm.")
    described.rename(".ffn_norm.", ".layer_output_norm.")
    described.tensors = [
        tensor for tensor in described.tensors if not str(tensor.name).startswith("output_norm")
    ]
    embedding_norm(described)
    described.set("tokenizer.ggml.token_type_count", 2)
    dim = described.value(f"{name}.embedding_length")
    described.add_rows(
        "token_types.weight", 0.05 * np.random.default_rng(23).standard_normal((2, dim))
    )
    return described


def bert(quant: str = "F32", **arguments: int) -> tiny_gguf.TinyGGUF:
    described = _post_normed("bert", quant, **arguments)
    described.drop_tensors("ffn_gate.weight")
    described.add_biases("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
    positions(described)
    return described


def nomic_bert(quant: str = "F32", **arguments: int) -> tiny_gguf.TinyGGUF:
    described = _post_normed("nomic-bert", quant, **arguments)
    described.fuse("attn_qkv.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight")
    return described


def modern_bert(quant: str = "F32", **arguments: int) -> tiny_gguf.TinyGGUF:
    described = _begun("modern-bert", quant, **arguments)
    described.with_layer_norms()
    described.drop_tensors("norm.bias", "blk.0.attn_norm.weight")
    embedding_norm(described)
    described.drop_tensor("token_embd_norm.bias")
    described.fuse("attn_qkv.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight")
    described.fuse("ffn_up.weight", "ffn_gate.weight", "ffn_up.weight")
    described.set("modern-bert.attention.sliding_window", WINDOW)
    described.set("modern-bert.attention.sliding_window_pattern", PERIOD)
    described.set("modern-bert.rope.freq_base", 160000.0)
    described.set("modern-bert.rope.freq_base_swa", 1000.0)
    return described


def gemma_embedding(quant: str = "F32", **arguments: int) -> tiny_gguf.TinyGGUF:
    """Return a model with the matrices for pooled vectors."""
    name = "gemma-embedding"
    rng = np.random.default_rng(29)
    described = tiny_gguf.decoder(
        name, quant, tied=True, head_norms=True, norms_after=True, **arguments
    )
    described.set(f"{name}.attention.causal", False)
    described.set(f"{name}.pooling_type", 1)
    described.set(f"{name}.attention.sliding_window", WINDOW)
    described.set(f"{name}.attention.sliding_window_pattern", PERIOD)
    dim = described.value(f"{name}.embedding_length")
    for number, rows, cols in ((2, 2 * dim, dim), (3, dim, 2 * dim)):
        described.tensors.append(
            tiny_gguf.quantised(f"dense_{number}.weight", quant, rows, cols, cols**-0.5, rng)
        )
        described.set(f"{name}.dense_{number}_feat_in", cols)
        described.set(f"{name}.dense_{number}_feat_out", rows)
    return described


def _begin(twin: Twin, ids: list[int]) -> Array:
    x = twin.embed(ids)
    rows = twin.tensor("position_embd.weight")
    types = twin.tensor("token_types.weight")
    if rows is not None:
        x = x + rows[: len(ids)]
    if types is not None:
        x = x + types[0]
    return twin.layer_norm(x, "token_embd_norm")


def _post_norm(
    turn: Callable[[Twin], Turn], branch: Callable[[Twin, str, Array], Array]
) -> Callable[..., Array]:
    def vectors(twin: Twin, ids: list[int]) -> Array:
        x = _begin(twin, ids)
        for block in twin.blocks:
            attended = twin.attention(block, x, turn(twin), n_after=len(ids))
            x = twin.layer_norm(x + attended, block + "attn_output_norm")
            x = twin.layer_norm(x + branch(twin, block, x), block + "layer_output_norm")
        return x

    return vectors


def _windowed(twin: Twin, n: int, is_whole: bool, theta: float) -> dict[str, object]:
    """Return the arguments of attention."""
    if is_whole:
        return {"turn": twin.turner(neighbours=False), "n_after": n}
    turn = twin.turner(neighbours=False, theta=theta)
    return {"turn": turn, "n_after": WINDOW // 2, "window": WINDOW // 2 + 1}


def _modern(twin: Twin, ids: list[int]) -> Array:
    x = _begin(twin, ids)
    for number, block in enumerate(twin.blocks):
        h = twin.layer_norm(x, block + "attn_norm") if number else x
        x = x + twin.attention(block, h, **_windowed(twin, len(ids), number % PERIOD == 0, 1000.0))
        h = twin.layer_norm(x, block + "ffn_norm")
        n = twin.key("feed_forward_length")
        gate, up = (twin.project(h, block + "ffn_up", rows) for rows in (slice(n), slice(n, None)))
        x = x + twin.project(gelu(gate) * up, block + "ffn_down")
    return twin.layer_norm(x, "output_norm")


def _gemma(twin: Twin, ids: list[int]) -> Array:
    x = twin.embed(ids) * twin.key("embedding_length") ** 0.5
    for number, block in enumerate(twin.blocks):
        arguments = _windowed(twin, len(ids), number % PERIOD == PERIOD - 1, 10000.0)
        attended = twin.attention(
            block, twin.norm(x, block + "attn_norm"), has_head_norms=True, **arguments
        )
        x = x + twin.norm(attended, block + "post_attention_norm")
        hidden = twin.feed_forward(block, twin.norm(x, block + "ffn_norm"), gelu)
        x = x + twin.norm(hidden, block + "post_ffw_norm")
    return twin.norm(x, "output_norm")


TINY = {
    "bert": bert,
    "nomic-bert": nomic_bert,
    "modern-bert": modern_bert,
    "gemma-embedding": gemma_embedding,
}
VECTORS = {
    "bert": _post_norm(
        lambda twin: np.copy, lambda twin, block, h: twin.plain_feed_forward(block, h, gelu)
    ),
    "nomic-bert": _post_norm(lambda twin: twin.turner(neighbours=False), Twin.feed_forward),
    "modern-bert": _modern,
    "gemma-embedding": _gemma,
}
"""Return the vectors of all tokens after the last norm, (n, dim) float64."""


def judging(described: tiny_gguf.TinyGGUF, n_labels: int, has_dense: bool) -> tiny_gguf.TinyGGUF:
    """Return the model as a classifier of documents."""
    name = described.value("general.architecture")
    rng = np.random.default_rng(31)
    dim = described.value(f"{name}.embedding_length")
    quant = described.tensor("blk.0.attn_output.weight").ggml_type
    described.set(f"{name}.pooling_type", 4)
    described.set(f"{name}.classifier.output_labels", [f"label {n}" for n in range(n_labels)])
    described.add_rows("cls.output.weight", rng.standard_normal((n_labels, dim)) / dim**0.5)
    if has_dense:
        matrix = tiny_gguf.quantised("cls.weight", GGML_TYPES[quant].name, dim, dim, dim**-0.5, rng)
        described.tensors.append(matrix)
        described.add_vector("cls.bias", 0.1 * rng.standard_normal(dim))
        described.add_vector("cls.output.bias", 0.1 * rng.standard_normal(n_labels))
    return described

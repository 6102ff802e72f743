"""Layers that families share: their tensors and their rows of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.vision.config import CHANNELS, EncoderConfig
from engine.vision.positions import side_of
from engine.weights.weights import TensorSpec

if TYPE_CHECKING:
    from engine.cache.rotation import Rotation
    from engine.gguf.contents import TensorInfo
    from engine.plan.buffers import Activations
    from engine.vision.stage import EncoderStage
    from engine.vision.tensors import EncoderWeights

Specs = dict[str, TensorSpec]
PATCHES = "v.patch_embd"
POSITIONS = "v.position_embd.weight"
UP_AND_DOWN = "ffn_up", "ffn_down"


def layer_name(number: int) -> str:
    """Return the beginning of the names of a layer's tensors."""
    return f"v.blk.{number}."


def linear(name: str, n_rows: int, n_cols: int, has_bias: bool = True) -> Specs:
    """Return the tensors of a product."""
    specs = {f"{name}.weight": TensorSpec((n_rows, n_cols))}
    if has_bias:
        specs[f"{name}.bias"] = TensorSpec((n_rows,))
    return specs


def is_product(spec: TensorSpec) -> bool:
    """Return whether a tensor is a matrix, and no kernel of a convolution, whose products are
    few."""
    return len(spec.shape) == 2 and not spec.is_plain


def layer_norm(name: str, n: int, is_required: bool = True) -> Specs:
    """Return the tensors of a LayerNorm."""
    return {
        f"{name}.{suffix}": TensorSpec((n,), required=is_required) for suffix in ("weight", "bias")
    }


def patch_kernels(config: EncoderConfig, has_bias: bool = True) -> Specs:
    """Return the tensors of the products of patches."""
    shape = (config.dim, CHANNELS, config.patch, config.patch)
    specs = {f"{PATCHES}.weight": TensorSpec(shape)}
    if has_bias:
        specs[f"{PATCHES}.bias"] = TensorSpec((config.dim,))
    return specs


def square_positions(config: EncoderConfig, infos: Mapping[str, TensorInfo]) -> Specs:
    """Return the tensor of learned positions, a row for each place of a square grid.

    Raises:
        ValueError: Its number of rows is no square.
    """
    n_rows = 1
    if POSITIONS in infos:
        n_rows = infos[POSITIONS].shape[0]
    if not side_of(n_rows):
        raise ValueError(f"tensor {POSITIONS} has {n_rows} rows: no square")
    return {POSITIONS: TensorSpec((n_rows, config.dim), is_vectors=True)}


def plain_layers(
    config: EncoderConfig, infos: Mapping[str, TensorInfo], is_fused: bool = False
) -> Specs:
    """Return the tensors of layers with LayerNorms and biases."""
    dim = config.dim
    specs: Specs = {}
    for number in range(config.n_layers):
        b = layer_name(number)
        specs |= layer_norm(b + "ln1", dim) | layer_norm(b + "ln2", dim)
        if is_fused:
            specs |= linear(b + "attn_qkv", 3 * dim, dim)
        else:
            for letter in "qkv":
                specs |= linear(b + f"attn_{letter}", dim, dim)
            # without rope it adds the same to every score of a patch
            specs[b + "attn_k.bias"] = TensorSpec((dim,), required=False)
        specs |= linear(b + "attn_out", dim, dim)
        up, down = UP_AND_DOWN
        if are_exchanged(config, infos):
            up, down = down, up
        specs |= linear(b + up, config.hidden_dim, dim) | linear(b + down, dim, config.hidden_dim)
    return specs


def are_exchanged(config: EncoderConfig, infos: Mapping[str, TensorInfo]) -> bool:
    """Return whether ``ffn_up`` and ``ffn_down`` have each other's names, as in old files."""
    down = infos.get(layer_name(0) + "ffn_down.weight")
    is_up = down is not None and down.shape == (config.hidden_dim, config.dim)
    return is_up and config.hidden_dim != config.dim


def exchange(config: EncoderConfig, weights: EncoderWeights) -> None:
    """Give ``ffn_up`` and ``ffn_down`` each other's names."""
    tensors = weights.tensors
    for number in range(config.n_layers):
        for suffix in ("weight", "bias"):
            up, down = (f"{layer_name(number)}{name}.{suffix}" for name in UP_AND_DOWN)
            tensors[up], tensors[down] = tensors[down], tensors[up]


def fill_hidden(config: EncoderConfig, weights: EncoderWeights, n: int) -> None:
    """Widen the feed-forwards with zeros, so that rows of ``ffn_down`` are full blocks."""
    for number in range(config.n_layers):
        for name in ("ffn_gate.weight", "ffn_gate.bias", "ffn_up.weight", "ffn_up.bias"):
            if layer_name(number) + name in weights.tensors:
                weights.fill_rows(layer_name(number) + name, n)
        weights.fill_columns(layer_name(number) + "ffn_down.weight", n)


def split_fused(config: EncoderConfig, weights: EncoderWeights) -> None:
    """Name the parts of fused queries, keys and values."""
    dim = config.dim
    for number in range(config.n_layers):
        b = layer_name(number)
        for suffix in ("weight", "bias"):
            fused = weights.tensors.pop(f"{b}attn_qkv.{suffix}", None)
            if fused is not None:
                for index, letter in enumerate("qkv"):
                    part = fused.part(index * dim, dim)
                    weights.tensors[f"{b}attn_{letter}.{suffix}"] = part


def plain_layer(stage: EncoderStage, number: int, rotation: Rotation | None = None) -> None:
    """Write a layer: x += attention(norm(x)), then x += feed-forward(norm(x))."""
    b = layer_name(number)
    dim = stage.config.dim
    stage.plan.phase = "attention"
    normed = stage.norm(stage.x, b + "ln1")
    q, k, v = (stage.vector(name, dim) for name in "qkv")
    stage.multiply(normed, (b + "attn_q", q), (b + "attn_k", k), (b + "attn_v", v))
    stage.turn(q, rotation)
    stage.turn(k, rotation)
    attended = stage.attend(q, k, v)
    stage.add(stage.product(attended, b + "attn_out"))
    stage.plan.phase = "feed-forward"
    normed = stage.norm(stage.x, b + "ln2")
    stage.add(_feed_forward(stage, normed, b))
    stage.end_layer(number)


def _feed_forward(stage: EncoderStage, x: Activations, b: str) -> Activations:
    up = stage.product(x, b + "ffn_up")
    stage.plan.activate(stage.config.activation, up)
    stage.plan.barrier()
    return stage.product(up, b + "ffn_down")


def embed_patches(stage: EncoderStage) -> None:
    """Write the first rows of a plan: x, which holds positions and bias, plus the patches."""
    matrix = stage.weights[PATCHES + ".weight"]
    stage.plan.phase = "patches"
    patches = stage.vector("patches", matrix.n_cols)
    products = stage.vector("product patches", stage.config.dim)
    stage.plan.quantize(patches, matrix)
    stage.plan.barrier()
    stage.plan.matmul(matrix, patches, products)
    stage.plan.barrier()
    stage.add(products)


def two_products(
    stage: EncoderStage, x: Activations, first: str, second: str, out: Activations, index: int = 0
) -> None:
    """Compute out = second(gelu(first(x))), from an element of ``out`` on."""
    n_hidden = stage.weights[first + ".weight"].n_rows
    hidden = stage.vector(f"hidden {n_hidden}", n_hidden)
    stage.multiply(x, (first, hidden))
    stage.plan.activate("gelu", hidden)
    stage.plan.barrier()
    stage.multiply(hidden, (second, out), first=index)

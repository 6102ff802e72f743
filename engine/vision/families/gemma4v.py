"""Gemma 4: cells of 3 x 3 patches, norms before and after branches, rotations by column and row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from engine.config import BOTH_WAYS_IN_WINDOWS, CAUSAL
from engine.vision.config import EncoderConfig
from engine.vision.family import (
    EncoderFamily,
    Frame,
    Inputs,
    by_cells,
    normalised,
    patches_of,
    whole_picture,
)
from engine.vision.layers import POSITIONS, Specs, embed_patches, layer_name, linear, patch_kernels
from engine.vision.pixels import BICUBIC
from engine.vision.positions import by_row_and_column, turned_by
from engine.vision.rows import (
    HIGH,
    LOW,
    USUAL,
    Pixels,
    Rows,
)
from engine.vision.sizes import RowBudget, Size, aligned_size
from engine.vision.stage import EncoderStage, turned_pairs
from engine.weights.weights import TensorSpec

if TYPE_CHECKING:
    from engine.gguf.contents import TensorInfo
    from engine.plan.buffers import Activations
    from engine.vision.tensors import EncoderWeights

BUDGETS = {LOW: RowBudget(70, 70), USUAL: RowBudget(70, 280), HIGH: RowBudget(70, 1120)}
THETA = 100.0
CAUSAL_WIDTHS = 1536, 2560
"""Widths of the text models (E2B and E4B) whose rows do not see each other both ways."""
PROJECTION = "mm.input_projection"
BOUNDS = "input_min", "input_max", "output_min", "output_max"
WITH_BOUNDS = (
    "attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down",
)  # fmt: skip


def frames(config: EncoderConfig, size: Size, detail: str) -> tuple[list[Frame], str]:
    """Return one part with the picture's aspect."""
    canvas = aligned_size(size, config.cell, BUDGETS[detail])
    return whole_picture("<|image>", "<image|>", canvas, config.cell)


def visibility(config: EncoderConfig) -> str:
    """Return which rows see each other."""
    if config.text_width in CAUSAL_WIDTHS:
        return CAUSAL
    return BOTH_WAYS_IN_WINDOWS


def two_tables(config: EncoderConfig, infos: Mapping[str, TensorInfo]) -> Specs:
    """Return the tensor of two tables of positions: of columns, then of rows."""
    n = 1
    if POSITIONS in infos and len(infos[POSITIONS].shape) == 3:
        n = infos[POSITIONS].shape[1]
    return {POSITIONS: TensorSpec((2, n, config.dim), is_vectors=True)}


def _bounded(name: str, n_rows: int, n_cols: int) -> Specs:
    specs = linear(name, n_rows, n_cols, has_bias=False)
    return specs | {f"{name}.{bound}": TensorSpec((1,), required=False) for bound in BOUNDS}


def _tensors(config: EncoderConfig, infos: Mapping[str, TensorInfo]) -> Specs:
    dim = config.dim
    hidden = config.hidden_dim
    if config.head_dim % 4:
        raise ValueError(f"heads of {config.head_dim} cannot be turned by row and column")
    specs = patch_kernels(config, has_bias=False) | two_tables(config, infos)
    shapes = {"ffn_gate": (hidden, dim), "ffn_up": (hidden, dim), "ffn_down": (dim, hidden)}
    for number in range(config.n_layers):
        b = layer_name(number)
        for name in WITH_BOUNDS:
            specs |= _bounded(b + name, *shapes.get(name, (dim, dim)))
        for name in ("ln1", "ln2", "attn_post_norm", "ffn_post_norm"):
            specs[f"{b}{name}.weight"] = TensorSpec((dim,))
        for name in ("attn_q_norm", "attn_k_norm"):
            specs[f"{b}{name}.weight"] = TensorSpec((config.head_dim,))
        specs[f"{b}out_scale.weight"] = TensorSpec((1,), required=False)
    for name in ("v.std_bias", "v.std_scale"):
        specs[name] = TensorSpec((dim,), required=False)
    return specs | _bounded(PROJECTION, config.text_width, dim)


def _prepare(config: EncoderConfig, weights: EncoderWeights) -> None:
    """Put the elements of heads in an order in which the two of a pair are half a head apart."""
    width = config.head_dim
    n = width // 4
    by_column = np.arange(n)
    by_row = by_column + 2 * n
    order = np.concatenate([by_column, by_row, by_column + n, by_row + n])
    heads = np.arange(config.n_heads)[:, None] * width
    for number in range(config.n_layers):
        b = layer_name(number)
        for name in ("attn_q", "attn_k"):
            weights.take_rows(f"{b}{name}.weight", (heads + order).ravel())
            weights.take_rows(f"{b}{name}_norm.weight", order)


def _inputs(config: EncoderConfig, weights: EncoderWeights, pixels: Pixels) -> Inputs:
    image = 2 * normalised(config, pixels) - 1
    patches = patches_of(image, config.patch)
    n_rows, n_columns, _ = patches.shape
    start = by_row_and_column(weights.floats(POSITIONS), n_rows, n_columns)
    n = config.head_dim // 4
    frequencies = THETA ** (-np.arange(n) / n)
    angles = turned_by(n_rows, n_columns, frequencies, frequencies, column_first=True)
    return Inputs(
        by_cells(patches, config.merge),
        by_cells(start, config.merge),
        by_cells(angles, config.merge),
    )


def _compose(stage: EncoderStage) -> None:
    embed_patches(stage)
    for number in range(stage.config.n_layers):
        _layer(stage, layer_name(number))
        stage.end_layer(number)
    dim = stage.config.dim
    stage.plan.copy(stage.x, (0, 0), stage.encoded, (0, 0), dim)
    stage.plan.barrier()


def _layer(stage: EncoderStage, b: str) -> None:
    config = stage.config
    plan = stage.plan
    half = config.head_dim // 2
    rotation = turned_pairs(half, 1, half)
    plan.phase = "attention"
    normed = stage.norm(stage.x, b + "ln1")
    q, k, v = (stage.vector(name, config.dim) for name in "qkv")
    _multiply(stage, normed, (b + "attn_q", q), (b + "attn_k", k), (b + "attn_v", v))
    plan.attention.unit_heads(v, config.head_dim, v, config.eps)
    stage.turn(q, rotation, b + "attn_q_norm")
    stage.turn(k, rotation, b + "attn_k_norm")
    attended = stage.attend(q, k, v)
    branch = stage.vector("branch", config.dim)
    _multiply(stage, attended, (b + "attn_out", branch))
    stage.add(branch, b + "attn_post_norm")
    plan.phase = "feed-forward"
    normed = stage.norm(stage.x, b + "ln2")
    gate, up = (stage.vector(name, config.hidden_dim) for name in ("gate", "up"))
    if stage.weights[b + "ffn_up.weight"].n_rows != config.hidden_dim:
        n_hidden = stage.weights[b + "ffn_up.weight"].n_rows
        gate, up = (stage.vector(name, n_hidden) for name in ("gate", "up"))
    _multiply(stage, normed, (b + "ffn_gate", gate), (b + "ffn_up", up))
    plan.gate(config.activation, gate, up)
    plan.barrier()
    _multiply(stage, gate, (b + "ffn_down", branch))
    stage.add(branch, b + "ffn_post_norm")
    scale = b + "out_scale.weight"
    if scale in stage.weights:
        plan.scale(stage.x, stage.scalar(scale))
        plan.barrier()


def _multiply(stage: EncoderStage, x: Activations, *products: tuple[str, Activations]) -> None:
    """Multiply x by matrices, each with limits of its own on what goes in and comes out."""
    if not any(f"{name}.{bound}" in stage.weights for name, _ in products for bound in BOUNDS):
        stage.multiply(x, *products)
        return
    for name, out in products:
        low, high, least, most = (_bound(stage, f"{name}.{bound}") for bound in BOUNDS)
        clamped = stage.vector("clamped", x.n)
        stage.plan.clamp_between(x, (low, high), clamped)
        stage.plan.barrier()
        stage.multiply(clamped, (name, out))
        stage.plan.clamp_between(out, (least, most), out)
        stage.plan.barrier()


def _bound(stage: EncoderStage, name: str) -> float:
    """Return a limit of the file; numbers that no float exceeds if there is none."""
    if name in stage.weights:
        return stage.scalar(name)
    most = float(np.finfo(np.float32).max)
    if name.endswith("min"):
        return -most
    return most


def _merge_cells(config: EncoderConfig, weights: EncoderWeights, x: Rows) -> Rows:
    cells = x.reshape(-1, config.merge**2, config.dim).mean(axis=1) * np.float32(config.dim**0.5)
    if "v.std_bias" in weights.tensors:
        cells = cells - weights.floats("v.std_bias")
    if "v.std_scale" in weights.tensors:
        cells = cells * weights.floats("v.std_scale")
    result: Rows = cells
    return result


def _compose_head(stage: EncoderStage) -> None:
    cells = stage.norm(stage.vector("cells", stage.config.dim), "")
    _multiply(stage, cells, (PROJECTION, stage.vector("rows", stage.config.text_width)))


FAMILY = EncoderFamily(
    title="Gemma 4",
    architectures=("gemma4",),
    merge=3,
    resample=BICUBIC,
    frames=frames,
    tensors=_tensors,
    inputs=_inputs,
    compose=_compose,
    merge_cells=_merge_cells,
    compose_head=_compose_head,
    cell_width=lambda config: config.dim,
    visibility=visibility,
    has_gates=True,
    prepare=_prepare,
)

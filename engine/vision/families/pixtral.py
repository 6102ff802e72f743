"""Pixtral and Mistral 3: a break after each row of patches, rotations of neighbours, and no other
positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from engine.vision.config import EncoderConfig
from engine.vision.family import EncoderFamily, Frame, Inputs, by_cells, normalised, patches_of
from engine.vision.layers import PATCHES, Specs, layer_name, linear, patch_kernels, two_products
from engine.vision.pixels import BICUBIC
from engine.vision.positions import turned_by
from engine.vision.rows import HIGH, LOW, USUAL, Pixels, RowGrid, Rows
from engine.vision.sizes import RowBudget, Size, aligned_size
from engine.vision.stage import EncoderStage, turned_pairs
from engine.weights.weights import TensorSpec

if TYPE_CHECKING:
    from engine.gguf.contents import TensorInfo
    from engine.vision.tensors import EncoderWeights

BUDGETS = {LOW: RowBudget(8, 256), USUAL: RowBudget(8, 512), HIGH: RowBudget(8, 1024)}
THETA = 10000.0
BREAK = "v.token_embd.img_break"
MERGER = "mm.patch_merger"
MERGER_NORM = "mm.input_norm"


def _frames(config: EncoderConfig, size: Size, detail: str) -> tuple[list[Frame], str]:
    canvas = aligned_size(size, config.cell, BUDGETS[detail])
    n_columns = canvas[0] // config.cell
    n_rows = canvas[1] // config.cell
    n_breaks = n_rows - 1
    return [Frame("", canvas, RowGrid(1, n_rows * n_columns + n_breaks))], "[IMG_END]"


def _tensors(config: EncoderConfig, infos: Mapping[str, TensorInfo]) -> Specs:
    dim = config.dim
    hidden = config.hidden_dim
    text_width = config.text_width
    if config.head_dim % 4:
        raise ValueError(f"heads of {config.head_dim} cannot be turned by row and column")
    specs = patch_kernels(config, has_bias=False) | {"v.pre_ln.weight": TensorSpec((dim,))}
    shapes = {"ffn_gate": (hidden, dim), "ffn_up": (hidden, dim), "ffn_down": (dim, hidden)}
    shapes |= dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (dim, dim))
    for number in range(config.n_layers):
        b = layer_name(number)
        for name, shape in shapes.items():
            specs |= linear(b + name, *shape, has_bias=False)
        for name in ("ln1", "ln2"):
            specs[f"{b}{name}.weight"] = TensorSpec((dim,))
    if f"{MERGER}.weight" in infos:
        specs[f"{MERGER_NORM}.weight"] = TensorSpec((dim,))
        specs |= linear(MERGER, dim, _cell_width(config), has_bias=False)
    elif config.merge != 1:
        raise ValueError(f"tensor {MERGER}.weight is missing")
    specs |= linear("mm.1", text_width, dim, has_bias=False)
    specs |= linear("mm.2", text_width, text_width, has_bias=False)
    for name in ("mm.1.bias", "mm.2.bias"):
        specs[name] = TensorSpec((text_width,), required=False)
    return specs | {BREAK: TensorSpec((text_width,))}


def _cell_width(config: EncoderConfig) -> int:
    return config.dim * config.merge**2


def _prepare(config: EncoderConfig, weights: EncoderWeights) -> None:
    """Put the columns of the merger into the order of cells: patch by patch."""
    name = f"{MERGER}.weight"
    if name in weights.tensors:
        order = np.arange(_cell_width(config)).reshape(config.dim, -1).T.ravel()
        quant = weights.tensors[name].quant
        weights.write(name, weights.floats(name)[:, order], quant)


def _inputs(config: EncoderConfig, weights: EncoderWeights, pixels: Pixels) -> Inputs:
    patches = patches_of(normalised(config, pixels), config.patch)
    n_rows, n_columns, _ = patches.shape
    n = config.head_dim // 4
    frequencies = THETA ** (-np.arange(2 * n) / (2 * n))
    angles = turned_by(n_rows, n_columns, frequencies[::2], frequencies[1::2])
    start = np.zeros((n_rows * n_columns, config.dim), np.float32)
    return Inputs(by_cells(patches, config.merge), start, by_cells(angles, config.merge))


def _compose(stage: EncoderStage) -> None:
    matrix = stage.weights[PATCHES + ".weight"]
    stage.plan.phase = "patches"
    embedded = stage.vector("embedded", stage.config.dim)
    stage.plan.barrier()
    stage.multiply(stage.vector("patches", matrix.n_cols), (PATCHES, embedded))
    stage.norm_into(embedded, "v.pre_ln", stage.x)
    for number in range(stage.config.n_layers):
        _layer(stage, layer_name(number))
        stage.end_layer(number)
    if f"{MERGER}.weight" in stage.weights:
        stage.norm_into(stage.x, MERGER_NORM, stage.encoded)
    else:
        stage.plan.copy(stage.x, (0, 0), stage.encoded, (0, 0), stage.config.dim)
        stage.plan.barrier()


def _layer(stage: EncoderStage, b: str) -> None:
    dim = stage.config.dim
    rotation = turned_pairs(stage.config.head_dim // 2, 2, 1)
    stage.plan.phase = "attention"
    normed = stage.norm(stage.x, b + "ln1")
    q, k, v = (stage.vector(name, dim) for name in "qkv")
    stage.multiply(normed, (b + "attn_q", q), (b + "attn_k", k), (b + "attn_v", v))
    stage.turn(q, rotation)
    stage.turn(k, rotation)
    stage.add(stage.product(stage.attend(q, k, v), b + "attn_out"))
    stage.plan.phase = "feed-forward"
    normed = stage.norm(stage.x, b + "ln2")
    n_hidden = stage.weights[b + "ffn_up.weight"].n_rows
    gate, up = (stage.vector(name, n_hidden) for name in ("gate", "up"))
    stage.multiply(normed, (b + "ffn_gate", gate), (b + "ffn_up", up))
    stage.plan.gate(stage.config.activation, gate, up)
    stage.plan.barrier()
    stage.add(stage.product(gate, b + "ffn_down"))


def _merge_cells(config: EncoderConfig, weights: EncoderWeights, x: Rows) -> Rows:
    return x.reshape(-1, _cell_width(config))


def _compose_head(stage: EncoderStage) -> None:
    stage.plan.barrier()
    cells = stage.vector("cells", _cell_width(stage.config))
    if f"{MERGER}.weight" in stage.weights:
        cells = stage.product(cells, MERGER)
    two_products(stage, cells, "mm.1", "mm.2", stage.vector("rows", stage.config.text_width))


def _with_breaks(
    config: EncoderConfig, weights: EncoderWeights, rows: Rows, pixels: Pixels
) -> Rows:
    """Put a break after each row of cells but the last."""
    n_columns = pixels.shape[1] // config.cell
    grid = rows.reshape(-1, n_columns, config.text_width)
    breaks = np.broadcast_to(weights.floats(BREAK), (len(grid), 1, config.text_width))
    lines = np.concatenate([grid, breaks], axis=1).reshape(-1, config.text_width)
    without_last: Rows = lines[:-1].copy()
    return without_last


FAMILY = EncoderFamily(
    title="Pixtral, Mistral 3",
    architectures=("llama", "mistral3"),
    merge=1,
    resample=BICUBIC,
    frames=_frames,
    tensors=_tensors,
    inputs=_inputs,
    compose=_compose,
    merge_cells=_merge_cells,
    compose_head=_compose_head,
    cell_width=_cell_width,
    has_gates=True,
    prepare=_prepare,
    finish=_with_breaks,
)

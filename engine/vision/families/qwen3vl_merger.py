"""Qwen3-VL and Qwen3.5: cells of 2 x 2 patches, rotations by row and column, and deepstack."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

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
from engine.vision.layers import (
    PATCHES,
    POSITIONS,
    Specs,
    embed_patches,
    layer_norm,
    linear,
    patch_kernels,
    plain_layer,
    plain_layers,
    square_positions,
    two_products,
)
from engine.vision.pixels import BICUBIC
from engine.vision.positions import corner_aligned, turned_by
from engine.vision.rows import DETAILS, Pixels, Rows
from engine.vision.sizes import RowBudget, Size, aligned_size
from engine.vision.stage import EncoderStage, tap_name, turned_pairs

if TYPE_CHECKING:
    from engine.gguf.contents import TensorInfo
    from engine.vision.tensors import EncoderWeights

BUDGETS = dict(
    zip(DETAILS, (RowBudget(8, 256), RowBudget(8, 1024), RowBudget(8, 4096)), strict=True)
)
THETA = 10000.0
SECOND_KERNEL = f"{PATCHES}.weight.1"
TAP = "v.deepstack.{}.fc1.weight"


def _frames(config: EncoderConfig, size: Size, detail: str) -> tuple[list[Frame], str]:
    canvas = aligned_size(size, config.cell, BUDGETS[detail])
    return whole_picture("<|vision_start|>", "<|vision_end|>", canvas, config.cell)


def _taps(config: EncoderConfig, names: Collection[str]) -> tuple[int, ...]:
    return tuple(number for number in range(config.n_layers) if TAP.format(number) in names)


def _tensors(config: EncoderConfig, infos: Mapping[str, TensorInfo]) -> Specs:
    width = _cell_width(config)
    specs = patch_kernels(config) | plain_layers(config, infos, is_fused=True)
    specs[SECOND_KERNEL] = specs[PATCHES + ".weight"]
    specs |= square_positions(config, infos) | layer_norm("v.post_ln", config.dim)
    specs |= linear("mm.0", width, width) | linear("mm.2", config.text_width, width)
    for number in _taps(config, infos):
        b = f"v.deepstack.{number}."
        specs |= layer_norm(b + "norm", width) | linear(b + "fc1", width, width)
        specs |= linear(b + "fc2", config.text_width, width)
    return specs


def _prepare(config: EncoderConfig, weights: EncoderWeights) -> None:
    kernels = weights.floats(PATCHES + ".weight") + weights.floats(SECOND_KERNEL)
    weights.write(PATCHES + ".weight", kernels)
    del weights.tensors[SECOND_KERNEL]


def _inputs(config: EncoderConfig, weights: EncoderWeights, pixels: Pixels) -> Inputs:
    patches = patches_of(normalised(config, pixels), config.patch)
    n_rows, n_columns, _ = patches.shape
    table = corner_aligned(weights.floats(POSITIONS), n_rows, n_columns)
    start = by_cells(table, config.merge) + weights.floats(PATCHES + ".bias")
    n = config.head_dim // 4
    frequencies = THETA ** (-np.arange(n) / n)
    angles = turned_by(n_rows, n_columns, frequencies, frequencies)
    return Inputs(by_cells(patches, config.merge), start, by_cells(angles, config.merge))


def _compose(stage: EncoderStage) -> None:
    half = stage.config.head_dim // 2
    rotation = turned_pairs(half, 1, half)
    embed_patches(stage)
    for number in range(stage.config.n_layers):
        plain_layer(stage, number, rotation)
    stage.norm_into(stage.x, "v.post_ln", stage.encoded)


def _cell_width(config: EncoderConfig) -> int:
    return config.dim * config.merge**2


def _merge_cells(config: EncoderConfig, weights: EncoderWeights, x: Rows) -> Rows:
    return x.reshape(-1, _cell_width(config))


def _compose_head(stage: EncoderStage) -> None:
    width = _cell_width(stage.config)
    text_width = stage.config.text_width
    parts = [("cells", "mm.0", "mm.2", "")]
    for number in stage.taps:
        b = f"v.deepstack.{number}."
        parts.append((tap_name(number), b + "fc1", b + "fc2", b + "norm"))
    rows = stage.vector("rows", text_width * len(parts))
    for index, (name, first, second, norm) in enumerate(parts):
        x = stage.vector(name, width)
        if norm:
            x = stage.norm(x, norm)
        two_products(stage, x, first, second, rows, index * text_width)


FAMILY = EncoderFamily(
    title="Qwen3-VL, Qwen3.5",
    architectures=("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"),
    merge=2,
    resample=BICUBIC,
    frames=_frames,
    tensors=_tensors,
    inputs=_inputs,
    compose=_compose,
    merge_cells=_merge_cells,
    compose_head=_compose_head,
    cell_width=_cell_width,
    taps=_taps,
    has_grid_positions=True,
    prepare=_prepare,
)

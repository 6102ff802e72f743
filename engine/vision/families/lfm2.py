"""LFM2-VL and LFM2.5-VL: one picture of up to 256 embeddings, or tiles and a thumbnail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from engine.vision.config import EncoderConfig
from engine.vision.families import siglip
from engine.vision.family import EncoderFamily, Frame
from engine.vision.layers import Specs, layer_norm, linear, two_products
from engine.vision.pixels import BILINEAR
from engine.vision.rows import HIGH, LOW, USUAL, RowGrid, Rows
from engine.vision.sizes import RowBudget, Size, aligned_size
from engine.vision.stage import EncoderStage

if TYPE_CHECKING:
    from engine.gguf.contents import TensorInfo
    from engine.vision.tensors import EncoderWeights

BUDGET = RowBudget(64, 256)
TILE = 512
"""Side of a tile in pixels."""
LEAST_TILES = 2
MOST_TILES = {LOW: 0, USUAL: 4, HIGH: 10}
"""Limit on the tiles for each detail; 0 if pictures are not cut."""
TILED_ABOVE = 2
"""A picture is cut if its area is above so many times that of the largest single picture."""
NORM_EPS = 1e-5


def _frames(config: EncoderConfig, size: Size, detail: str) -> tuple[list[Frame], str]:
    whole = aligned_size(size, config.cell, BUDGET)
    grid = RowGrid(whole[1] // config.cell, whole[0] // config.cell)
    most = MOST_TILES[detail]
    if not most or not _is_cut(size, config.cell):
        return [Frame("<|image_start|>", whole, grid, is_stretched=True)], "<|image_end|>"
    n_columns, n_rows = _tile_grid(size, most)
    canvas = n_columns * TILE, n_rows * TILE
    tile_grid = RowGrid(TILE // config.cell, TILE // config.cell)
    frames: list[Frame] = []
    for row in range(n_rows):
        for column in range(n_columns):
            marker = f"<|img_row_{row + 1}_col_{column + 1}|>"
            if not frames:
                marker = "<|image_start|>" + marker
            box = column * TILE, row * TILE, (column + 1) * TILE, (row + 1) * TILE
            frames.append(Frame(marker, canvas, tile_grid, box=box))
    frames.append(Frame("<|img_thumbnail|>", whole, grid, is_stretched=True))
    return frames, "<|image_end|>"


def _is_cut(size: Size, cell: int) -> bool:
    columns, rows = (max(1, int(np.rint(np.float32(side) / np.float32(cell)))) for side in size)
    return columns * rows > TILED_ABOVE * BUDGET.most


def _tile_grid(size: Size, most: int) -> tuple[int, int]:
    """Return columns and rows of tiles: the grid nearest in aspect.

    Of grids that are equally near, the larger one is taken if the picture has more than half its
    pixels.
    """
    width, height = size
    aspect = np.float32(width) / np.float32(height)
    grids = [
        (columns, rows)
        for columns in range(1, most + 1)
        for rows in range(1, most + 1)
        if LEAST_TILES <= columns * rows <= most
    ]
    best = (1, 1)
    smallest = np.float32(np.inf)
    for columns, rows in sorted(grids, key=lambda grid: (grid[0] * grid[1], grid)):
        distance = np.abs(aspect - np.float32(columns) / np.float32(rows))
        is_half_full = width * height > columns * rows * TILE * TILE / 2
        if distance < smallest or (distance == smallest and is_half_full):
            smallest = distance
            best = columns, rows
    return best


def _tensors(config: EncoderConfig, infos: Mapping[str, TensorInfo]) -> Specs:
    width = _cell_width(config)
    n_hidden = config.text_width
    if "mm.1.weight" in infos:
        n_hidden = infos["mm.1.weight"].shape[0]
    if TILE % config.cell:
        raise ValueError(f"cells of {config.cell} pixels do not fill tiles of {TILE}")
    specs = siglip.tensors(config, infos)
    specs |= layer_norm("mm.input_norm", width, is_required=False)
    return specs | linear("mm.1", n_hidden, width) | linear("mm.2", config.text_width, n_hidden)


def _cell_width(config: EncoderConfig) -> int:
    return config.dim * config.merge**2


def _merge_cells(config: EncoderConfig, weights: EncoderWeights, x: Rows) -> Rows:
    return x.reshape(-1, _cell_width(config))


def _compose_head(stage: EncoderStage) -> None:
    cells = stage.vector("cells", _cell_width(stage.config))
    if "mm.input_norm.weight" in stage.weights:
        cells = stage.norm(cells, "mm.input_norm", NORM_EPS)
    two_products(stage, cells, "mm.1", "mm.2", stage.vector("rows", stage.config.text_width))


FAMILY = EncoderFamily(
    title="LFM2-VL, LFM2.5-VL",
    architectures=("lfm2", "lfm2moe"),
    merge=2,
    resample=BILINEAR,
    frames=_frames,
    tensors=_tensors,
    inputs=siglip.inputs,
    compose=siglip.compose,
    merge_cells=_merge_cells,
    compose_head=_compose_head,
    cell_width=_cell_width,
)

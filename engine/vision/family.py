"""A family of encoders: its sizes, its tensors, and its steps from pixels to rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.config import CAUSAL
from engine.vision.rows import Pixels, RowGrid, Rows
from engine.vision.sizes import Size

if TYPE_CHECKING:
    from engine.gguf.contents import TensorInfo
    from engine.vision.config import EncoderConfig
    from engine.vision.stage import EncoderStage
    from engine.vision.tensors import EncoderWeights
    from engine.weights.weights import TensorSpec

Box = tuple[int, int, int, int]
"""Left, top, right and bottom of a rectangle of pixels."""


@dataclass(frozen=True)
class Frame:
    """Part of a picture whose size is decided.

    Attributes:
        text_before: As in ``PicturePart``.
        canvas: Size that the whole picture is resized to.
        grid: Embeddings that the part becomes.
        is_stretched: Whether the picture fills the canvas, else it keeps its aspect in the middle.
        box: Part of the canvas; None for all of it.
        before: Sizes that the picture is stretched to first, one after the other.
    """

    text_before: str
    canvas: Size
    grid: RowGrid
    is_stretched: bool = False
    box: Box | None = None
    before: tuple[Size, ...] = ()


@dataclass(frozen=True, eq=False)
class Inputs:
    """Numbers that the first plan reads, a row for each patch.

    Attributes:
        patches: (n, pixels of a patch) float32.
        start: (n, dim) float32 that the products of the patches are added to: positions and bias.
        angles: (n, 2, pairs) float32, cos and sin for queries and keys; None without rope.
    """

    patches: Rows
    start: Rows
    angles: Rows | None = None


@dataclass(frozen=True)
class EncoderFamily:
    """Functions of a family.

    Attributes:
        title: Models of the family, for people.
        architectures: Architectures of the text models that encoders of the family belong to.
        merge: Patches along a side of a cell, if the file does not say.
        resample: Filter of resizing, as in ``engine.vision.pixels``.
        frames: (config, size of a picture, detail) -> frames and the text after them.
        tensors: (config, tensors of the file) -> specification of each tensor.
        inputs: (config, weights, pixels of a part) -> inputs.
        compose: (stage) -> None, writes the plan that reads patches and writes ``x``.
        merge_cells: (config, weights, (n, dim) float32) -> cells as (m, cols) float32.
        compose_head: (stage) -> None, writes the plan that reads cells and writes ``rows``.
        cell_width: (config) -> cols of ``merge_cells``.
        taps: (config, names of tensors) -> numbers of the layers whose results become further
            embeddings.
        visibility: (config) -> ``PreparedPicture.visibility``.
        finish: (config, weights, rows, pixels of a part) -> rows of the prompt: those of the cells,
            and others between them.
        has_grid_positions: As in ``PreparedPicture``.
        has_gates: Whether feed-forwards have a gate.
        prepare: (config, weights) -> None, changes weights before the first plan is written.
    """

    title: str
    architectures: tuple[str, ...]
    merge: int
    resample: str
    frames: Callable[[EncoderConfig, Size, str], tuple[list[Frame], str]]
    tensors: Callable[[EncoderConfig, Mapping[str, TensorInfo]], dict[str, TensorSpec]]
    inputs: Callable[[EncoderConfig, EncoderWeights, Pixels], Inputs]
    compose: Callable[[EncoderStage], None]
    merge_cells: Callable[[EncoderConfig, EncoderWeights, Rows], Rows]
    compose_head: Callable[[EncoderStage], None]
    cell_width: Callable[[EncoderConfig], int]
    taps: Callable[[EncoderConfig, Collection[str]], tuple[int, ...]] = lambda config, names: ()
    visibility: Callable[[EncoderConfig], str] = lambda config: CAUSAL
    finish: Callable[[EncoderConfig, EncoderWeights, Rows, Pixels], Rows] = (
        lambda config, weights, rows, pixels: rows
    )
    has_grid_positions: bool = False
    has_gates: bool = False
    prepare: Callable[[EncoderConfig, EncoderWeights], None] = lambda config, weights: None


def whole_picture(before: str, after: str, canvas: Size, cell: int) -> tuple[list[Frame], str]:
    """Return a picture of one part, with its aspect on a canvas, between two markers."""
    grid = RowGrid(canvas[1] // cell, canvas[0] // cell)
    return [Frame(before, canvas, grid)], after


def normalised(config: EncoderConfig, pixels: Pixels) -> Rows:
    """Return pixels as (height, width, 3) float32 with the encoder's mean and deviation."""
    levels = np.arange(256, dtype=np.float32) / np.float32(255)
    tables = [
        (levels - np.float32(mean)) / np.float32(deviation)
        for mean, deviation in zip(config.mean, config.deviation, strict=True)
    ]
    out = np.empty(pixels.shape, np.float32)
    for channel, table in enumerate(tables):
        out[:, :, channel] = table[pixels[:, :, channel]]
    return out


def patches_of(image: Rows, side: int) -> Rows:
    """Return the patches of an image as (rows, columns, 3 * side * side), each by channel, row,
    column."""
    height, width, channels = image.shape
    n_rows = height // side
    n_columns = width // side
    blocks = image.reshape(n_rows, side, n_columns, side, channels)
    shape = n_rows, n_columns, channels * side * side
    patches: Rows = blocks.transpose(0, 2, 4, 1, 3).reshape(shape)
    return patches


def by_cells(grid: Rows, merge: int) -> Rows:
    """Return (rows, columns, n) as (rows * columns, n), cell by cell, in each cell row by row."""
    n_rows, n_columns, n = grid.shape
    cells = grid.reshape(n_rows // merge, merge, n_columns // merge, merge, n)
    return np.ascontiguousarray(cells.transpose(0, 2, 1, 3, 4)).reshape(n_rows * n_columns, n)

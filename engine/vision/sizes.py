"""Sizes that pictures are resized to. Arithmetic is float32, as in llama.cpp's ``tools/mtmd``: its
sizes are the reference, since models are served with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Size = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True)
class RowBudget:
    """Limits on the embeddings of a picture."""

    least: int
    most: int


def aligned_size(size: Size, side: int, budget: RowBudget) -> Size:
    """Return the size in full cells that is nearest to a picture's, within a budget.

    Args:
        side: Side of the square of pixels that becomes one embedding.
    """
    width, height = (np.float32(length) for length in size)
    area = width * height
    most = np.float32(budget.most * side * side)
    least = np.float32(budget.least * side * side)
    columns, rows = (
        max(1, int(np.floor(x / np.float32(side) + np.float32(0.5)))) for x in (width, height)
    )
    if columns * rows > budget.most:
        factor = np.sqrt(area / most)
        columns, rows = (
            max(1, int(np.floor(x / factor / np.float32(side)))) for x in (width, height)
        )
    elif columns * rows < budget.least:
        factor = np.sqrt(least / area)
        columns, rows = (int(np.ceil(x * factor / np.float32(side))) for x in (width, height))
    return columns * side, rows * side


def fitted_size(size: Size, canvas: Size) -> Size:
    """Return the largest size with a picture's aspect that fits a canvas, sides rounded up."""
    width, height = size
    factor = min(
        np.float32(canvas[0]) / np.float32(width), np.float32(canvas[1]) / np.float32(height)
    )
    fitted_width = min(int(np.ceil(np.float32(width) * factor)), canvas[0])
    fitted_height = min(int(np.ceil(np.float32(height) * factor)), canvas[1])
    return max(1, fitted_width), max(1, fitted_height)

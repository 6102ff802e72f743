"""Sixel graphics: each row of cells is a picture of its own, which Textual can move and cut."""

from __future__ import annotations

import re

import numpy as np

from app.documents.thumbnails import Thumbnail
from engine.vision.pixels import quantised

_MOST_COLOURS = 128
_BAND_ROWS = 6
_FIRST_CODE = 63
"""Code of the character for six pixels that are left as they are."""
_NO_PIXELS = bytes([_FIRST_CODE])
_RUN = re.compile(rb"([?-~])\1{3,}")


class SixelPicture:
    """A picture in the colours of a palette.

    Args:
        cell: width and height of a cell in pixels; those of the picture are multiples of them.
    """

    def __init__(self, picture: Thumbnail, cell: tuple[int, int]) -> None:
        pixels = np.frombuffer(picture.pixels, np.uint8).reshape(picture.height, picture.width, 3)
        self._colours, palette = quantised(pixels, _MOST_COLOURS)
        percents = [round(level * 100 / 255) for level in palette]
        self._palette = [
            ";".join(map(str, percents[start : start + 3])) for start in range(0, len(palette), 3)
        ]
        self._cell = cell
        self._columns = picture.width // cell[0]
        n_rows = picture.height // cell[1]
        self._rows = [self._encode(row, 0, self._columns - 1) for row in range(n_rows)]

    def row(self, row: int, first_column: int, last_column: int) -> str:
        """Return the sixels of neighbouring cells of a row."""
        if first_column == 0 and last_column == self._columns - 1:
            return self._rows[row]
        return self._encode(row, first_column, last_column)

    def _encode(self, row: int, first_column: int, last_column: int) -> str:
        width, height = self._cell
        colours = self._colours[
            row * height : (row + 1) * height, first_column * width : (last_column + 1) * width
        ]
        parts = [f'\x1bP0;1;0q"1;1;{colours.shape[1]};{height}']
        parts += [f"#{colour};2;{self._palette[colour]}" for colour in np.unique(colours)]
        bands = (colours[top : top + _BAND_ROWS] for top in range(0, height, _BAND_ROWS))
        parts.append("-".join(map(_band, bands)))
        return "".join(parts) + "\x1b\\"


def _band(colours: np.ndarray) -> str:
    """Return up to six rows of pixels, one colour over the other."""
    numbers = np.unique(colours)
    weights = (1 << np.arange(len(colours), dtype=np.uint8))[:, None]
    is_colour = colours == numbers[:, None, None]
    codes = (is_colour * weights).sum(1, dtype=np.uint8) + np.uint8(_FIRST_CODE)
    lines = [
        b"#%d%b" % (number, line.tobytes().rstrip(_NO_PIXELS))
        for number, line in zip(numbers, codes, strict=True)
    ]
    return _RUN.sub(_shortened, b"$".join(lines)).decode("ascii")


def _shortened(run: re.Match[bytes]) -> bytes:
    """Return a run of equal characters as their number and one of them."""
    return b"!%d%b" % (len(run[0]), run[1])

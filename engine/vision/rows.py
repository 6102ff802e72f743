"""A picture in a prompt: its parts, before and after the encoder has read them.

A picture is one part, or several tiles and a thumbnail. Each part is a grid of rows, which stand in
a prompt in place of embeddings of tokens. Texts with marker tokens stand around and between the
parts. Imports no numba and no Pillow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Rows = np.ndarray[Any, np.dtype[np.float32]]

LOW = "low"
USUAL = "usual"
HIGH = "high"
DETAILS = LOW, USUAL, HIGH
"""Settings of ``picture_detail``. The limits of ``HIGH`` are those of llama.cpp."""


@dataclass(frozen=True)
class RowGrid:
    """Rows of embeddings in two dimensions, in reading order."""

    n_rows: int
    n_columns: int

    @property
    def n(self) -> int:
        """Number of embeddings."""
        return self.n_rows * self.n_columns


@dataclass(frozen=True, eq=False)
class PicturePart:
    """Part of a picture, resized for the encoder.

    Attributes:
        text_before: Text between the previous part and this one, with marker tokens.
        pixels: (height, width, 3) uint8.
        grid: Embeddings that the part becomes.
    """

    text_before: str
    pixels: Pixels
    grid: RowGrid


@dataclass(frozen=True, eq=False)
class PreparedPicture:
    """Picture that the encoder has not read yet.

    Attributes:
        width, height: Size before resizing, turned as its EXIF data say.
        parts: Parts in the order of the prompt.
        text_after: Text after the last part.
        digest: Hash of the pixels, the sizes of the parts, and the encoder, 64 hexadecimal digits.
            Equal digests have equal rows.
        visibility: How the rows see each other, one of ``engine.config.VISIBILITIES``.
        has_grid_positions: Whether rows have positions by row and column (M-RoPE). The token after
            a part of R x C is then max(R, C) positions after its first row; otherwise rows count
            like tokens.
    """

    width: int
    height: int
    parts: tuple[PicturePart, ...]
    text_after: str
    digest: str
    visibility: str
    has_grid_positions: bool

    @property
    def n_rows(self) -> int:
        """Number of embeddings of all parts, without the tokens of the texts."""
        return sum(part.grid.n for part in self.parts)


@dataclass(frozen=True, eq=False)
class PictureRows:
    """Picture that the encoder has read.

    Attributes:
        picture: Parts, texts, digest and visibility.
        rows: Embeddings of each part, (grid.n, width of the text model * (1 + n_deepstack))
            float32.
        n_deepstack: Number of further embeddings in each row. The text model adds number j + 1 to
            the output of its layer j, in the rows of the picture only.
    """

    picture: PreparedPicture
    rows: tuple[Rows, ...]
    n_deepstack: int

"""Ids that stand for the rows of pictures in lists of tokens.

A prompt and a cache are lists of token ids. A part of a picture has one id for each of its rows:
negative numbers, derived from the picture's digest. So equal lists of ids have equal keys and
values, and everything that compares prefixes (cache, saved states, copies from peers) needs to know
no more. The ids are never decoded to text, guessed or penalised.

The last id of a part holds the size of its grid, which tells the position of the next token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

MAX_SIDE = 1 << 13
"""Limit on the rows and on the columns of a grid."""
LOWEST_ID = -(1 << 31)
"""Lowest id of a row; saved states have 32 bits for an id."""
_HASH_BITS = 30
_GRID_BIT = 1 << _HASH_BITS
_HAS_POSITIONS = 1 << 26


class PictureSpan(NamedTuple):
    """Ids of one part of a picture in a list.

    Attributes:
        first: index of the first id.
        n_rows, n_columns: grid of the part.
        has_grid_positions: whether its rows have positions by row and column (M-RoPE).
    """

    first: int
    n_rows: int
    n_columns: int
    has_grid_positions: bool

    @property
    def end(self) -> int:
        """Index after the last id."""
        return self.first + self.n_rows * self.n_columns

    @property
    def n_positions(self) -> int:
        """Number of positions that the part takes."""
        if self.has_grid_positions:
            return max(self.n_rows, self.n_columns)
        return self.n_rows * self.n_columns


def part_ids(
    digest: str, part: int, n_rows: int, n_columns: int, has_grid_positions: bool
) -> list[int]:
    """Return the ids of one part of a picture, each -2**31 to -1.

    Args:
        digest: digest of the picture, 64 hexadecimal digits.
        part: number of the part.

    Raises:
        ValueError: the grid is too small or too large.
    """
    n = n_rows * n_columns
    if n < 2 or not (0 < n_rows <= MAX_SIDE and 0 < n_columns <= MAX_SIDE):
        raise ValueError(f"a picture of {n_rows} x {n_columns} rows")
    stream = hashlib.shake_256(f"{digest} {part}".encode()).digest(4 * (n - 1))
    hashes = np.frombuffer(stream, "<u4").astype(np.int64) & (_GRID_BIT - 1)
    grid = (n_rows - 1) * MAX_SIDE + n_columns - 1
    if has_grid_positions:
        grid |= _HAS_POSITIONS
    return [*(-1 - hashes).tolist(), -1 - (_GRID_BIT | grid)]


def spans_in(ids: Sequence[int], first: int = 0) -> Iterator[PictureSpan]:
    """Yield the complete parts of pictures in a list of ids, in order.

    Args:
        first: index to begin with, outside of a picture.
    """
    start = -1
    for index in range(first, len(ids)):
        code = -1 - ids[index]
        if code < 0:
            start = -1
            continue
        if start < 0:
            start = index
        if code & _GRID_BIT:
            grid = code & (_HAS_POSITIONS - 1)
            span = PictureSpan(
                start, grid // MAX_SIDE + 1, grid % MAX_SIDE + 1, bool(code & _HAS_POSITIONS)
            )
            if span.end == index + 1:
                yield span
            start = -1


def part_start(ids: Sequence[int], n: int) -> int:
    """Return the index where the part of a picture begins that index n is inside of; n if it is
    inside of none."""
    start = n
    while start and ids[start - 1] < 0 and not -1 - ids[start - 1] & _GRID_BIT:
        start -= 1
    return start


def grid_positions(span: PictureSpan) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return (n, 3) int64: time, row and column of each row of a part, counted from the part's
    first position."""
    if not span.has_grid_positions:
        n = span.end - span.first
        return np.repeat(np.arange(n)[:, None], 3, axis=1)
    rows, columns = np.divmod(np.arange(span.end - span.first), span.n_columns)
    return np.stack([np.zeros_like(rows), rows, columns], axis=1)


def text_ids(ids: Sequence[int]) -> list[int]:
    """Return the ids of tokens, without those of pictures."""
    return [token for token in ids if token >= 0]

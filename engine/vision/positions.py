"""Positions of patches on a grid: learned tables that fit another grid, and angles of rotations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine.errors import EngineError
from engine.vision.rows import Rows

Matrix = np.ndarray[Any, np.dtype[np.float32]]


def side_of(n: int) -> int:
    """Return the side of a square table of n rows; 0 if it is no square."""
    side = math.isqrt(n)
    if side * side != n:
        return 0
    return side


def corner_aligned(table: Rows, n_rows: int, n_columns: int) -> Rows:
    """Return a square table resized to (rows, columns, dim), bilinear: corners stay corners."""
    side = side_of(len(table))
    square = table.reshape(side, side, -1)
    if (n_rows, n_columns) == (side, side):
        return square
    return _resized(square, _between_corners(side, n_rows), _between_corners(side, n_columns))


def antialiased(table: Rows, n_rows: int, n_columns: int) -> Rows:
    """Return a square table resized to (rows, columns, dim), bilinear with antialiasing."""
    side = side_of(len(table))
    square = table.reshape(side, side, -1)
    if (n_rows, n_columns) == (side, side):
        return square
    return _resized(square, _triangles(side, n_rows), _triangles(side, n_columns))


def _resized(square: Rows, by_row: Matrix, by_column: Matrix) -> Rows:
    rows = np.einsum("ij,jkd->ikd", by_row, square, optimize=True)
    resized: Rows = np.einsum("ij,kjd->kid", by_column, rows, optimize=True)
    return resized


def _between_corners(n: int, n_out: int) -> Matrix:
    """Return the (n_out, n) weights of linear interpolation between the corners."""
    at = np.arange(n_out, dtype=np.float32) * np.float32((n - 1) / max(1, n_out - 1))
    low = np.minimum(at.astype(np.int64), n - 1)
    high = np.minimum(low + 1, n - 1)
    weights = np.zeros((n_out, n), np.float32)
    share = at - low
    np.add.at(weights, (np.arange(n_out), low), 1 - share)
    np.add.at(weights, (np.arange(n_out), high), share)
    return weights


def _triangles(n: int, n_out: int) -> Matrix:
    """Return the (n_out, n) weights of triangles that are as wide as the step where it shrinks."""
    step = n / n_out
    width = max(1.0, step)
    centres = (np.arange(n_out) + 0.5) * step
    distances = np.abs(np.arange(n) + 0.5 - centres[:, None])
    weights = np.maximum(0.0, 1.0 - distances / width)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights.astype(np.float32)


def by_row_and_column(tables: Rows, n_rows: int, n_columns: int) -> Rows:
    """Return the sum of two tables, (rows, columns, dim).

    Args:
        tables: (2 * n, dim): a row for each column of the grid, then one for each row.

    Raises:
        EngineError: The grid is larger than the tables.
    """
    by_column, by_row = tables.reshape(2, -1, tables.shape[-1])
    if max(n_rows, n_columns) > len(by_row):
        raise EngineError(
            f"a picture of {n_columns} x {n_rows} patches is too long for this encoder, which has "
            f"positions for {len(by_row)} (choose a lower detail, or cut the picture)"
        )
    grid: Rows = by_row[:n_rows, None] + by_column[None, :n_columns]
    return grid


def turned_by(
    n_rows: int, n_columns: int, by_row: Any, by_column: Any, column_first: bool = False
) -> Rows:
    """Return cos, then sin, of the pairs of a head, (rows, columns, 2 * pairs).

    Args:
        by_row: Frequencies of the pairs that turn by the row.
        by_column: Frequencies of the pairs that turn by the column.
        column_first: Whether the pairs that turn by the column come first.
    """
    rows = np.arange(n_rows)[:, None, None] * np.asarray(by_row)
    columns = np.arange(n_columns)[None, :, None] * np.asarray(by_column)
    both = [np.broadcast_to(a, (n_rows, n_columns, a.shape[-1])) for a in (rows, columns)]
    if column_first:
        both.reverse()
    angles = np.concatenate(both, axis=-1)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)

"""The Hadamard matrix that heads are multiplied by before they are quantised, in NumPy; the kernel
says what for."""

from __future__ import annotations

from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]


def block_of(width: int) -> int:
    """Elements of a head that are multiplied together: the largest power of two that divides its
    width."""
    return width & -width


def multiplied(heads: Floats) -> Floats:
    """Return each block of (..., head_dim) float32 times the normalised matrix, which is its own
    inverse."""
    width = heads.shape[-1]
    stride = 1
    block = block_of(width)
    found: Floats = heads * np.float32(block**-0.5)
    while stride < block:
        pairs = found.reshape(*heads.shape[:-1], width // (2 * stride), 2, stride)
        first = pairs[..., 0, :]
        second = pairs[..., 1, :]
        found = np.stack([first + second, first - second], axis=-2).reshape(heads.shape)
        stride *= 2
    return found

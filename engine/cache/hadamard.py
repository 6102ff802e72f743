"""Hadamard transform of heads before they are quantised, in NumPy. The reason is with the kernel,
``engine/kernels/hadamard.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]


def block_of(width: int) -> int:
    """Return the number of elements of a head that are transformed together: the largest power of
    two that divides the width."""
    return width & -width


def multiplied(heads: Floats) -> Floats:
    """Multiply each block of (..., head_dim) float32 by the normalised matrix, which is its own
    inverse."""
    width = heads.shape[-1]
    stride = 1
    block = block_of(width)
    result: Floats = heads * np.float32(block**-0.5)
    while stride < block:
        pairs = result.reshape(*heads.shape[:-1], width // (2 * stride), 2, stride)
        first = pairs[..., 0, :]
        second = pairs[..., 1, :]
        result = np.stack([first + second, first - second], axis=-2).reshape(heads.shape)
        stride *= 2
    return result

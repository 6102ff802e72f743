"""Quantisation of float32 rows to blocks of a type, by all threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np

from engine.errors import BrokenModelError
from engine.gguf.ggml_types import TYPES_BY_NAME

Floats = np.ndarray[Any, np.dtype[np.float32]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

KERNELS = {
    "Q4_0": "blocks:q4_0", "Q4_1": "blocks:q4_1", "Q5_0": "blocks:q5_0", "Q5_1": "blocks:q5_1",
    "Q8_0": "blocks:q8_0",
    "IQ4_NL": "blocks:iq4_nl", "Q2_K": "superblocks:q2_k", "Q3_K": "superblocks:q3_k",
    "Q4_K": "superblocks:q4_k",
    "Q5_K": "superblocks:q5_k", "Q6_K": "superblocks:q6_k", "IQ4_XS": "superblocks:iq4_xs",
}  # fmt: skip
"""Place of each type's kernel."""
CASTS = ("F32", "F16", "BF16")
WRITABLE = (*CASTS, *KERNELS)
"""Types that rows can be converted to."""
UNWEIGHTED = (*CASTS, "Q8_0")
"""Types whose result does not depend on the importance of columns."""
MOST = 65504.0
"""Largest value that an f16, and so a scale, can hold."""
_FEWEST_BLOCKS = 8
_CHUNK = 1 << 16
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def quantise_rows(
    values: Floats, type_name: str, importance: Floats | None = None, n_threads: int = 1
) -> Bytes:
    """Convert rows to blocks; the result does not depend on the number of threads.

    Args:
        values: (n_rows, n_cols) float32, contiguous; n_cols is a multiple of the type's block.
        type_name: Member of ``WRITABLE``.
        importance: (n_cols,) float32, the cost of an error in each column: the mean square of
            its activations.

    Returns:
        (n_rows, row_bytes) uint8.

    Raises:
        BrokenModelError: A value is NaN, infinite, or above the range of the type.
    """
    layout = TYPES_BY_NAME[type_name]
    n_rows, n_cols = values.shape
    out = np.empty((n_rows, n_cols // layout.block_size * layout.type_size), np.uint8)
    if type_name in CASTS:
        work = _cast(type_name)
    else:
        work = _kernel(type_name, _scaled(importance), n_cols)
    n_at_once = max(1, _CHUNK // n_cols, -(-_FEWEST_BLOCKS * layout.block_size // n_cols))
    firsts = range(0, n_rows, n_at_once)

    def do(first: int) -> None:
        some_rows = values[first : first + n_at_once]
        if type_name in ("F32", "BF16"):
            most = np.finfo(np.float32).max
        else:
            most = MOST
        if not np.abs(some_rows).max() <= most:
            raise BrokenModelError(f"holds NaN, infinity or a value above {most:.5g}")
        work(some_rows, out[first : first + n_at_once])

    if n_threads == 1:
        for first in firsts:
            do(first)
    else:
        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(do, firsts))
    return out


def _cast(type_name: str) -> Callable[[Floats, Bytes], None]:
    def work(values: Floats, out: Bytes) -> None:
        if type_name == "BF16":
            bits = values.view(np.uint32)
            out.view(np.uint16)[:] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        else:
            out.view(np.float16 if type_name == "F16" else np.float32)[:] = values

    return work


def _scaled(importance: Floats | None) -> Floats | None:
    """Scale importance to about one, and nowhere zero: a block that nothing used is not lost."""
    if importance is None:
        mean = 0.0
    else:
        mean = float(np.mean(importance, dtype=np.float64))
    if importance is None or mean <= 0:
        return None
    return np.ascontiguousarray(importance / mean + 1e-4, np.float32)


def _kernel(
    type_name: str, importance: Floats | None, n_cols: int
) -> Callable[[Floats, Bytes], None]:
    lanes = import_module("engine.quantize.lanes")
    module, name = KERNELS[type_name].split(":")
    call = _CALL(getattr(import_module(f"engine.quantize.{module}"), name).address)
    layout = TYPES_BY_NAME[type_name]

    def work(values: Floats, out: Bytes) -> None:
        n_blocks = values.size // layout.block_size
        if n_blocks < _FEWEST_BLOCKS:
            padded = np.zeros(_FEWEST_BLOCKS * layout.block_size, np.float32)
            padded[: values.size] = values.ravel()
            padded_out = np.empty(_FEWEST_BLOCKS * layout.type_size, np.uint8)
            work(padded, padded_out)
            out.ravel()[:] = padded_out[: out.size]
            return
        scratch = np.empty(lanes.SCRATCH_BYTES, np.uint8)
        record = np.array(
            [
                values.ctypes.data, 0 if importance is None else importance.ctypes.data,
                out.ctypes.data,
                n_blocks, n_cols // layout.block_size, scratch.ctypes.data,
            ],
            np.int64,
        )  # fmt: skip
        call(record.ctypes.data, 0, 1)

    return work

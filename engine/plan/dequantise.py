"""Rows of weights as float32, by the kernel that looks up tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.kernels.records import EMBED, STEP
from engine.plan.buffers import TransposedParts
from engine.plan.compilation import compile_kernels, place_of
from engine.plan.plan import Plan
from engine.quants.base import QUANT_TYPES
from engine.weights.weights import Tensor

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def run_operations(plan: Plan) -> None:
    """Run a plan in the calling thread, operation by operation."""
    addresses = compile_kernels(plan.kernels())
    table, n = plan.table(addresses)
    rows = np.ctypeslib.as_array((ctypes.c_int64 * (3 * n)).from_address(table)).reshape(n, 3)
    for kernel, record, _ in rows:
        _KERNEL(int(kernel))(int(record), 0, 1)


def dequantised(
    tensor: Tensor, rows: np.ndarray[Any, Any]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return rows of a matrix, by their numbers: (len(rows), n_cols) float32."""
    from engine.ahead import address_of  # imports llvmlite, which opening a model does not need

    tokens = np.ascontiguousarray(rows, np.int32)
    out = np.empty((len(rows), tensor.n_cols), np.float32)
    step = np.zeros(16, np.int64)
    record = np.zeros(len(EMBED), np.int64)
    step[STEP.tokens // 8], step[STEP.n_tokens // 8] = tokens.ctypes.data, len(rows)
    n_blocks = tensor.n_cols // QUANT_TYPES[tensor.quant].block_size
    record[[offset // 8 for offset in EMBED]] = (
        step.ctypes.data, tensor.address, tensor.row_bytes, n_blocks, out.ctypes.data,
        tensor.n_cols,
    )  # fmt: skip
    _KERNEL(address_of(place_of(f"embed {tensor.quant}")))(record.ctypes.data, 0, 1)
    return out


def fill(matrices: Iterable[TransposedParts]) -> None:
    """Compute matrices from the weights that they are made of."""
    for transposed in matrices:
        n_parts = transposed.n_parts
        first = np.arange(transposed.source.n_rows).reshape(transposed.n_parts, -1)[
            :, : transposed.n_first
        ]
        rows = dequantised(transposed.source, first.ravel()).reshape(
            n_parts, transposed.n_first, transposed.source.n_cols
        )
        transposed.memory.array(
            np.float32, (n_parts, transposed.source.n_cols, transposed.n_first)
        )[:] = rows.swapaxes(1, 2)

"""Rows of weights as float32, by the kernel that looks tokens up."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.kernels.records import MATMUL_SCRATCH_BYTES, STEP
from engine.machine.memory import Memory
from engine.plan.buffers import Activations, TurnedOver
from engine.plan.compilation import compile_kernels
from engine.plan.plan import Plan
from engine.weights.weights import Tensor

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def run(plan: Plan) -> None:
    """Walk a plan in the calling thread, operation by operation."""
    addresses = compile_kernels(plan.kernels())
    table, n = plan.table(addresses)
    rows = np.ctypeslib.as_array((ctypes.c_int64 * (3 * n)).from_address(table)).reshape(n, 3)
    for kernel, record, _ in rows:
        _KERNEL(int(kernel))(int(record), 0, 1)


def dequantised(tensor: Tensor, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return rows of a matrix, by their numbers: (len(rows), n_cols) float32."""
    step, tokens, out = Memory(128), Memory(4 * len(rows)), Activations("weights", tensor.n_cols, len(rows))
    words = step.array(np.int64, (16,))
    words[STEP.tokens // 8], words[STEP.n_tokens // 8] = tokens.address, len(rows)
    tokens.array(np.int32, (len(rows),))[:] = rows
    scratch = Memory(MATMUL_SCRATCH_BYTES)
    plan = Plan(step.address, len(rows), (scratch.address, MATMUL_SCRATCH_BYTES))
    plan.embed(tensor, out)
    run(plan)
    return np.array(out.array()[: len(rows)])


def fill(matrices: Iterable[TurnedOver]) -> None:
    """Make matrices of the weights that they are made of."""
    for one in matrices:
        n, first = one.n_parts, np.arange(one.source.n_rows).reshape(one.n_parts, -1)[:, : one.n_first]
        rows = dequantised(one.source, first.ravel()).reshape(n, one.n_first, one.source.n_cols)
        one.memory.array(np.float32, (n, one.source.n_cols, one.n_first))[:] = rows.swapaxes(1, 2)

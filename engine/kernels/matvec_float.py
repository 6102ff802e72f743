"""Decode of F32, F16 and BF16: rows of weights times f32 activations.

out[t] = weights @ x[t], f32.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matvec import claim, prefetch_ahead, rows_in_order, store_result
from engine.kernels.records import MATMUL as F


def row_kernels_float(load8, load1, item_bytes):
    """Make ``matvec`` and ``small_batch``, with four accumulators of eight lanes for each row.

    Args:
        load8: (address) -> f32x8.
        load1: (address) -> f32, for the rest of a row.
        item_bytes: Bytes of a weight.
    """

    @inner
    def add_32(address, y, a):
        a0, a1, a2, a3 = a
        a0 = vec.fma(load8(address), vec.load_f32x8(y), a0)
        a1 = vec.fma(load8(address + 8 * item_bytes), vec.load_f32x8(y + 32), a1)
        a2 = vec.fma(load8(address + 16 * item_bytes), vec.load_f32x8(y + 64), a2)
        a3 = vec.fma(load8(address + 24 * item_bytes), vec.load_f32x8(y + 96), a3)
        return a0, a1, a2, a3

    @inner
    def finish_row(op, c, row, y, a):
        n_cols = vec.load_i64(op + F.n_cols)
        w = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
        (a0, a1, a2, a3) = a
        remainder = np.float32(0.0)
        for k in range(n_cols & ~31, n_cols & ~7, 8):
            a0 = vec.fma(load8(w + item_bytes * k), vec.load_f32x8(y + 4 * k), a0)
        for k in range(n_cols & ~7, n_cols):
            remainder += load1(w + item_bytes * k) * vec.load_f32(y + 4 * k)
        store_result(
            op, c, row, vec.sum_f32x8(vec.fadd(vec.fadd(a0, a1), vec.fadd(a2, a3))) + remainder
        )

    @inner
    def one_row(op, c, row, scratch):
        n_cols, ahead = vec.load_words(op, (F.n_cols, F.ahead))
        w = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
        y = vec.load_i64(op + F.q) + 4 * c * n_cols
        zero = vec.splat_f32x8(0.0)
        a = zero, zero, zero, zero
        for k in range(0, n_cols & ~31, 32):
            prefetch_ahead(w + item_bytes * k, ahead, 32 * item_bytes)
            a = add_32(w + item_bytes * k, y + 4 * k, a)
        finish_row(op, c, row, y, a)

    @inner
    def two_rows(op, row, stride):
        n_cols, ahead, row_bytes, y = vec.load_words(op, (F.n_cols, F.ahead, F.row_bytes, F.q))
        w = vec.load_i64(op + F.weights) + row * row_bytes
        distance = stride * row_bytes
        zero = vec.splat_f32x8(0.0)
        a = b = zero, zero, zero, zero
        for k in range(0, n_cols & ~31, 32):
            address = w + item_bytes * k
            prefetch_ahead(address, ahead, 32 * item_bytes)
            a = add_32(address, y + 4 * k, a)
            prefetch_ahead(address + distance, ahead, 32 * item_bytes)
            b = add_32(address + distance, y + 4 * k, b)
        finish_row(op, 0, row, y, a)
        finish_row(op, 0, row + stride, y, b)

    def matvec(op, thread, n_threads):
        turn = 0
        while turn < n_threads:
            stride, first, last, turn = claim(op, thread, n_threads, turn)
            for row in range(first, first + 2 * stride):
                two_rows(op, row, 2 * stride)
            for row in range(first + 4 * stride, last):
                one_row(op, 0, row, 0)

    return matvec, rows_in_order(one_row, is_small_batch=True)

"""Rows of floats times one column of f32 activations, or a few: decode of the types that are not
quantised."""

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matvec import ask_ahead, claim, finish, rows_in_order
from engine.kernels.records import MATMUL as F


def row_kernels_float(load8, load1, item_bytes):
    """Make ``matvec`` and ``small_batch``, with four accumulators of eight lanes for each row.

    Args:
        load8: (address) -> f32x8.
        load1: (address) -> f32, for what is left of a row.
        item_bytes: bytes of a weight.
    """

    @inner
    def add_32(at, y, a):
        a0, a1, a2, a3 = a
        a0 = vec.fma(load8(at), vec.load_f32x8(y), a0)
        a1 = vec.fma(load8(at + 8 * item_bytes), vec.load_f32x8(y + 32), a1)
        a2 = vec.fma(load8(at + 16 * item_bytes), vec.load_f32x8(y + 64), a2)
        a3 = vec.fma(load8(at + 24 * item_bytes), vec.load_f32x8(y + 96), a3)
        return a0, a1, a2, a3

    @inner
    def finish_row(op, c, row, y, a):
        n_cols = vec.load_i64(op + F.n_cols)
        w = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
        (a0, a1, a2, a3) = a
        rest = np.float32(0.0)
        for k in range(n_cols & ~31, n_cols & ~7, 8):
            a0 = vec.fma(load8(w + item_bytes * k), vec.load_f32x8(y + 4 * k), a0)
        for k in range(n_cols & ~7, n_cols):
            rest += load1(w + item_bytes * k) * vec.load_f32(y + 4 * k)
        finish(op, c, row, vec.sum_f32x8(vec.fadd(vec.fadd(a0, a1), vec.fadd(a2, a3))) + rest)

    @inner
    def one(op, c, row, room):
        n_cols, ahead = vec.load_words(op, (F.n_cols, F.ahead))
        w = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
        y = vec.load_i64(op + F.q) + 4 * c * n_cols
        zero = vec.splat_f32x8(0.0)
        a = zero, zero, zero, zero
        for k in range(0, n_cols & ~31, 32):
            ask_ahead(w + item_bytes * k, ahead, 32 * item_bytes)
            a = add_32(w + item_bytes * k, y + 4 * k, a)
        finish_row(op, c, row, y, a)

    @inner
    def two_rows(op, row, apart):
        n_cols, ahead, row_bytes, y = vec.load_words(op, (F.n_cols, F.ahead, F.row_bytes, F.q))
        w = vec.load_i64(op + F.weights) + row * row_bytes
        far = apart * row_bytes
        zero = vec.splat_f32x8(0.0)
        a = b = zero, zero, zero, zero
        for k in range(0, n_cols & ~31, 32):
            at = w + item_bytes * k
            ask_ahead(at, ahead, 32 * item_bytes)
            a = add_32(at, y + 4 * k, a)
            ask_ahead(at + far, ahead, 32 * item_bytes)
            b = add_32(at + far, y + 4 * k, b)
        finish_row(op, 0, row, y, a)
        finish_row(op, 0, row + apart, y, b)

    def matvec(op, thread, n_threads):
        turn = 0
        while turn < n_threads:
            apart, first, last, turn = claim(op, thread, n_threads, turn)
            for row in range(first, first + 2 * apart):
                two_rows(op, row, 2 * apart)
            for row in range(first + 4 * apart, last):
                one(op, 0, row, 0)

    return matvec, rows_in_order(one, is_small_batch=True)

"""Weight rows times one activation column, or a few: the loops of decode, shared by the quantised types.

A type supplies ``dot``, which adds one block's contribution to f32 lanes; the loops walk contiguous rows, or four rows
far apart in turn, and prefetch ahead of them, as the record says. Several columns are several calls of the same
``dot`` on the same block: the compiler unpacks its weights once for all of them, and every column comes out as it would
alone, to the bit.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels.records import LOOK_APART, LOOK_FLAGS, LOOK_NEAR, LOOK_PAGES, STEP
from engine.kernels.records import MATMUL as F
from engine.kernels.share import CLAIM_APART_BYTES, CLAIM_BYTES, claim_rows

PAGE_BYTES = 4096
PAGE_AHEAD_BYTES = 2048
"""From 1 to 7 kB made no difference (PERFORMANCE.md)."""


@inner
def finish(op, c, row, value):
    """Write one row's result for column c, with the bias or residual added where the record names one."""
    add = vec.load_i64(op + F.add)
    if add != 0:
        value = value + vec.load_f32(add + 4 * (c * vec.load_i64(op + F.add_stride) + row))
    vec.store_f32(vec.load_i64(op + F.out) + 4 * (c * vec.load_i64(op + F.out_stride) + row), value)


@inner
def each_line(ask, at, n_bytes):
    """Ask for the cache lines of the next ``n_bytes``, at most 384; without a loop, whose branches would cost more.

    Args:
        ask: ``prefetch_l2``, or ``prefetch_once`` for data that no other level of the cache need keep.
    """
    ask(at)
    if n_bytes > 64:
        ask(at + 64)
    if n_bytes > 128:
        ask(at + 128)
    if n_bytes > 192:
        ask(at + 192)
    if n_bytes > 256:
        ask(at + 256)
    if n_bytes > 320:
        ask(at + 320)


@inner
def ask_page(at, n_bytes):
    """Ask for the first two lines of the page that begins within ``n_bytes`` from ``at``, if one does."""
    if at & (PAGE_BYTES - 1) < n_bytes:
        page = at & -PAGE_BYTES
        vec.prefetch_l1(page)
        vec.prefetch_l1(page + 64)


@inner
def ask_ahead(at, ahead, n_bytes):
    """Ask for lines ahead of ``at``, of ``n_bytes``, as a choice of ``engine.plan.lookahead`` says."""
    if ahead & LOOK_PAGES:
        ask_page(at + PAGE_AHEAD_BYTES, n_bytes)
    far = ahead & ~LOOK_FLAGS
    if far < 0:
        each_line(vec.prefetch_once, at - far, n_bytes)
    elif far > 0:
        if ahead & LOOK_NEAR:
            each_line(vec.prefetch_l1, at + far, n_bytes)
        else:
            each_line(vec.prefetch_l2, at + far, n_bytes)


@inner
def claim(op, thread, n_threads, turn):
    """The next rows for decode, as ``claim_rows`` returns them, and before them how far apart four rows are.

    Returns:
        (apart, first, last, turn): rows ``first`` to ``first + apart`` are walked each with the three that are 1, 2 and
        3 times ``apart`` after it; the rest, all where it is 0, one after the other.
    """
    if vec.load_i64(op + F.ahead) & LOOK_APART:
        first, last, turn = claim_rows(op, 8, CLAIM_APART_BYTES, thread, n_threads, turn)
        return (last - first) // 4, first, last, turn
    first, last, turn = claim_rows(op, 8, CLAIM_BYTES, thread, n_threads, turn)
    return 0, first, last, turn


@inner
def finish_four(op, c, row, v0, v1, v2, v3):
    """Write one row's results for three or four columns."""
    finish(op, c, row, v0)
    finish(op, c + 1, row, v1)
    finish(op, c + 2, row, v2)
    if vec.load_i64(vec.load_i64(op + F.step) + STEP.n_tokens) > c + 3:
        finish(op, c + 3, row, v3)


@inner
def add_32(load8, item_bytes, at, y, a0, a1, a2, a3):
    """Add the products of 32 weights to a row's four accumulators."""
    a0 = vec.fma(load8(at), vec.load_f32x8(y), a0)
    a1 = vec.fma(load8(at + 8 * item_bytes), vec.load_f32x8(y + 32), a1)
    a2 = vec.fma(load8(at + 16 * item_bytes), vec.load_f32x8(y + 64), a2)
    a3 = vec.fma(load8(at + 24 * item_bytes), vec.load_f32x8(y + 96), a3)
    return a0, a1, a2, a3


@inner
def finish_float(load8, load1, item_bytes, op, c, row, y, a0, a1, a2, a3):
    """Add what is after a row's last 32 weights, and write its result for column c, whose activations are at y."""
    n_cols, w = vec.load_i64(op + F.n_cols), vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
    rest = np.float32(0.0)
    for k in range(n_cols & ~31, n_cols & ~7, 8):
        a0 = vec.fma(load8(w + item_bytes * k), vec.load_f32x8(y + 4 * k), a0)
    for k in range(n_cols & ~7, n_cols):
        rest += load1(w + item_bytes * k) * vec.load_f32(y + 4 * k)
    finish(op, c, row, vec.sum_f32x8(vec.fadd(vec.fadd(a0, a1), vec.fadd(a2, a3))) + rest)


@inner
def one_column_float(load8, load1, item_bytes, op, c, row):
    """One row of floats with one column of f32 activations, four accumulators of eight lanes.

    Args:
        load8: (address) -> f32x8.
        load1: (address) -> f32, for what is left of a row.
        item_bytes: bytes of a weight.
    """
    n_cols, ahead = vec.load_i64(op + F.n_cols), vec.load_i64(op + F.ahead)
    w, y = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes), vec.load_i64(op + F.q) + 4 * c * n_cols
    a0, a1, a2, a3 = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    for k in range(0, n_cols & ~31, 32):
        ask_ahead(w + item_bytes * k, ahead, 32 * item_bytes)
        a0, a1, a2, a3 = add_32(load8, item_bytes, w + item_bytes * k, y + 4 * k, a0, a1, a2, a3)
    finish_float(load8, load1, item_bytes, op, c, row, y, a0, a1, a2, a3)


@inner
def two_rows_float(load8, load1, item_bytes, op, row, apart):
    """Two rows that are ``apart`` from each other with one column, 32 weights of each in turn."""
    n_cols, ahead = vec.load_i64(op + F.n_cols), vec.load_i64(op + F.ahead)
    w, y = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes), vec.load_i64(op + F.q)
    far = apart * vec.load_i64(op + F.row_bytes)
    a0, a1, a2, a3 = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    b0, b1, b2, b3 = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    for k in range(0, n_cols & ~31, 32):
        at = w + item_bytes * k
        ask_ahead(at, ahead, 32 * item_bytes)
        a0, a1, a2, a3 = add_32(load8, item_bytes, at, y + 4 * k, a0, a1, a2, a3)
        ask_ahead(at + far, ahead, 32 * item_bytes)
        b0, b1, b2, b3 = add_32(load8, item_bytes, at + far, y + 4 * k, b0, b1, b2, b3)
    finish_float(load8, load1, item_bytes, op, 0, row, y, a0, a1, a2, a3)
    finish_float(load8, load1, item_bytes, op, 0, row + apart, y, b0, b1, b2, b3)


@inner
def matvec_float(load8, load1, item_bytes, op, thread, n_threads):
    """All rows with one column."""
    turn = 0
    while turn < n_threads:
        apart, first, last, turn = claim(op, thread, n_threads, turn)
        for row in range(first, first + 2 * apart):
            two_rows_float(load8, load1, item_bytes, op, row, 2 * apart)
        for row in range(first + 4 * apart, last):
            one_column_float(load8, load1, item_bytes, op, 0, row)


@inner
def few_float(load8, load1, item_bytes, op, thread, n_threads):
    """All rows with the few columns of the step: a row is in the cache from its first column on."""
    n_tokens = vec.load_i64(vec.load_i64(op + F.step) + STEP.n_tokens)
    turn = 0
    while turn < n_threads:
        first, last, turn = claim_rows(op, 8, CLAIM_BYTES, thread, n_threads, turn)
        for row in range(first, last):
            for c in range(n_tokens):
                one_column_float(load8, load1, item_bytes, op, c, row)

"""Rows of 32-weight blocks, or larger ones, times one column of activations in q8_0 form, or a few: decode."""

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matvec import ask_ahead, claim, finish, finish_four
from engine.kernels.records import MATMUL as F
from engine.kernels.records import STEP
from engine.kernels.share import CLAIM_BYTES, claim_rows


@inner
def fold_i16(p04, p15, p26, p37):
    """Sums of eight blocks in order, from pairs of blocks in the halves of i16x16; four lanes must fit into int16."""
    return vec.maddwd(vec.fold_twos(vec.fold_fours(p04, p15), vec.fold_fours(p26, p37)), vec.splat_i16x16(1))


@inner
def fold_i16_soon(p04, p15, p26, p37):
    """The same where only two lanes fit into int16."""
    ones = vec.splat_i16x16(1)
    return vec.fold_neighbours(vec.maddwd(vec.fold_fours(p04, p15), ones), vec.maddwd(vec.fold_fours(p26, p37), ones))


@inner
def fold_i32(p04, p15, p26, p37):
    """The same from i32x8."""
    return vec.fold_neighbours(vec.fold_neighbours(p04, p15), vec.fold_neighbours(p26, p37))


@inner
def eight_blocks(pair, fold, block_bytes, block, y):
    """Integer products of eight blocks of 32 weights in a row, lane = block; y as ``buffers.PAIRED_32`` says.

    Args:
        pair: (block, other, y_low, y_high) -> products of two blocks, one in each half of a register; of the two
            registers of activations one holds the first sixteen of both blocks, the other the rest.
        fold: ``fold_i16`` or ``fold_i16_soon`` where ``pair`` returns i16x16, ``fold_i32`` where it returns i32x8.
    """
    one, two, three, far = block_bytes, 2 * block_bytes, 3 * block_bytes, block + 4 * block_bytes
    return fold(
        pair(block, far, vec.load_i8x32(y), vec.load_i8x32(y + 32)),
        pair(block + one, far + one, vec.load_i8x32(y + 64), vec.load_i8x32(y + 96)),
        pair(block + two, far + two, vec.load_i8x32(y + 128), vec.load_i8x32(y + 160)),
        pair(block + three, far + three, vec.load_i8x32(y + 192), vec.load_i8x32(y + 224)),
    )


@inner
def by_block(low, high):
    """Lower and upper sixteen bytes of two blocks, one in each half of a register, as a register for each block."""
    return vec.join_i8(vec.low_half_i8(low), vec.low_half_i8(high)), vec.join_i8(
        vec.high_half_i8(low), vec.high_half_i8(high)
    )


@inner
def eight_groups(weights, sums_of, block_bytes, block, y):
    """``eight_blocks`` where sums of a whole block come in one operation (``simd.group_sums``).

    Args:
        weights: (block, other) -> lower sixteen bytes of two blocks, one in each half, and the upper ones.
    """
    one, two, three, far = block_bytes, 2 * block_bytes, 3 * block_bytes, block + 4 * block_bytes
    (w0, w4), (w1, w5) = by_block(*weights(block, far)), by_block(*weights(block + one, far + one))
    (w2, w6), (w3, w7) = by_block(*weights(block + two, far + two)), by_block(*weights(block + three, far + three))
    y0, y4 = by_block(vec.load_i8x32(y), vec.load_i8x32(y + 32))
    y1, y5 = by_block(vec.load_i8x32(y + 64), vec.load_i8x32(y + 96))
    y2, y6 = by_block(vec.load_i8x32(y + 128), vec.load_i8x32(y + 160))
    y3, y7 = by_block(vec.load_i8x32(y + 192), vec.load_i8x32(y + 224))
    return vec.join_i32(sums_of(w0, w1, w2, w3, y0, y1, y2, y3), sums_of(w4, w5, w6, w7, y4, y5, y6, y7))


@inner
def nibbles_of_two(block, other):
    """Nibbles at two addresses, the low ones and the high ones, as ``eight_groups`` takes them."""
    qs = vec.load_two_i8x16(block, other)
    return vec.and_(qs, vec.splat_i8x32(15)), vec.high_nibbles(qs)


@inner
def one_block_i16(pair, block, y):
    """Integer product of one block with activations in order, where ``pair`` returns i16x16."""
    products = pair(block, block, vec.broadcast_16_bytes(y), vec.broadcast_16_bytes(y + 16))
    return vec.sum_i32x4(vec.low_half_i32(vec.maddwd(products, vec.splat_i16x16(1))))


@inner
def one_block_i32(pair, block, y):
    """The same where ``pair`` returns i32x8."""
    return vec.sum_i32x4(
        vec.low_half_i32(pair(block, block, vec.broadcast_16_bytes(y), vec.broadcast_16_bytes(y + 16)))
    )


@inner
def columns_32(op, c):
    """Where column c of q8_0 activations is: (q, d, sums)."""
    n_cols = vec.load_i64(op + F.n_cols)
    room = n_cols if n_cols < 256 else (n_cols + 255) & ~255
    at = c * (room // 32) * 4
    return vec.load_i64(op + F.q) + c * room, vec.load_i64(op + F.d) + at, vec.load_i64(op + F.sums) + at


@inner
def short_row_32(dot1, block_size, block_bytes, op, c, row):
    """One row of fewer than 256 weights with one column.

    Args:
        dot1: (block, y, d_y, sums) -> f32, one block's value.
    """
    q, d, sums = columns_32(op, c)
    total = np.float32(0.0)
    block = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
    for i in range(0, vec.load_i64(op + F.n_cols) // 32, block_size // 32):
        total += dot1(block, q + 32 * i, d + 4 * i, sums + 4 * i)
        block += block_bytes
    finish(op, c, row, total)


@inner
def one_column_32(dot8, chunk_bytes, op, c, row):
    """One row with one column, 256 weights at a time: lane = 32 weights.

    The last 256 may overlap those before; the activations' scales are zero for what was added already.

    Args:
        dot8: (block, y, d_y, sums, acc) -> acc, adds 256 weights; d_y and sums are addresses, acc is f32x8.
        chunk_bytes: of 256 weights.
    """
    n_blocks = vec.load_i64(op + F.n_cols) // 32
    q, d, sums = columns_32(op, c)
    acc = vec.splat_f32x8(0.0)
    block = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
    ahead, last = vec.load_i64(op + F.ahead), block + (n_blocks - 8) * chunk_bytes // 8
    for i in range(0, n_blocks, 8):
        ask_ahead(block, ahead, chunk_bytes)
        acc = dot8(min(block, last), q + 32 * i, d + 4 * i, sums + 4 * i, acc)
        block += chunk_bytes
    finish(op, c, row, vec.sum_f32x8(acc))


@inner
def two_columns_32(dot8, chunk_bytes, op, c, row):
    """The same with two."""
    n_blocks = vec.load_i64(op + F.n_cols) // 32
    q, d, sums = columns_32(op, c)
    r, e, tums = columns_32(op, c + 1)
    a, b = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    block = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
    ahead, last = vec.load_i64(op + F.ahead), block + (n_blocks - 8) * chunk_bytes // 8
    for i in range(0, n_blocks, 8):
        ask_ahead(block, ahead, chunk_bytes)
        at = min(block, last)
        a = dot8(at, q + 32 * i, d + 4 * i, sums + 4 * i, a)
        b = dot8(at, r + 32 * i, e + 4 * i, tums + 4 * i, b)
        block += chunk_bytes
    finish(op, c, row, vec.sum_f32x8(a))
    finish(op, c + 1, row, vec.sum_f32x8(b))


@inner
def four_columns_32(dot8, chunk_bytes, op, c, row):
    """The same with four."""
    n_blocks = vec.load_i64(op + F.n_cols) // 32
    (q0, d0, s0), (q1, d1, s1) = columns_32(op, c), columns_32(op, c + 1)
    (q2, d2, s2), (q3, d3, s3) = columns_32(op, c + 2), columns_32(op, c + 3)
    a0, a1, a2, a3 = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    block = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
    ahead, last = vec.load_i64(op + F.ahead), block + (n_blocks - 8) * chunk_bytes // 8
    for i in range(0, n_blocks, 8):
        ask_ahead(block, ahead, chunk_bytes)
        at = min(block, last)
        a0 = dot8(at, q0 + 32 * i, d0 + 4 * i, s0 + 4 * i, a0)
        a1 = dot8(at, q1 + 32 * i, d1 + 4 * i, s1 + 4 * i, a1)
        a2 = dot8(at, q2 + 32 * i, d2 + 4 * i, s2 + 4 * i, a2)
        a3 = dot8(at, q3 + 32 * i, d3 + 4 * i, s3 + 4 * i, a3)
        block += chunk_bytes
    v0, v1 = vec.sum_f32x8(a0), vec.sum_f32x8(a1)
    finish_four(op, c, row, v0, v1, vec.sum_f32x8(a2), vec.sum_f32x8(a3))


@inner
def rows_apart_32(dot8, chunk_bytes, op, row, apart):
    """Four rows that are ``apart`` from each other with one column, 256 weights of each in turn."""
    n_blocks = vec.load_i64(op + F.n_cols) // 32
    q, d, sums = columns_32(op, 0)
    a0, a1, a2, a3 = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    block, far = (
        vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes),
        apart * vec.load_i64(op + F.row_bytes),
    )
    ahead, last = vec.load_i64(op + F.ahead), block + (n_blocks - 8) * chunk_bytes // 8
    for i in range(0, n_blocks, 8):
        at, y, d_y, sums_y = min(block, last), q + 32 * i, d + 4 * i, sums + 4 * i
        ask_ahead(block, ahead, chunk_bytes)
        a0 = dot8(at, y, d_y, sums_y, a0)
        ask_ahead(block + far, ahead, chunk_bytes)
        a1 = dot8(at + far, y, d_y, sums_y, a1)
        ask_ahead(block + 2 * far, ahead, chunk_bytes)
        a2 = dot8(at + 2 * far, y, d_y, sums_y, a2)
        ask_ahead(block + 3 * far, ahead, chunk_bytes)
        a3 = dot8(at + 3 * far, y, d_y, sums_y, a3)
        block += chunk_bytes
    finish(op, 0, row, vec.sum_f32x8(a0))
    finish(op, 0, row + apart, vec.sum_f32x8(a1))
    finish(op, 0, row + 2 * apart, vec.sum_f32x8(a2))
    finish(op, 0, row + 3 * apart, vec.sum_f32x8(a3))


@inner
def matvec_32(dot8, dot1, block_size, block_bytes, op, thread, n_threads):
    """All rows with one column.

    Args:
        block_size: 32, 64 or 128 weights; activations have a scale for 32.
    """
    chunk_bytes = 256 // block_size * block_bytes
    is_short = vec.load_i64(op + F.n_cols) < 256
    turn = 0
    while turn < n_threads:
        apart, first, last, turn = claim(op, thread, n_threads, turn)
        if is_short:
            apart = 0
        for row in range(first, first + apart):
            rows_apart_32(dot8, chunk_bytes, op, row, apart)
        for row in range(first + 4 * apart, last):
            if is_short:
                short_row_32(dot1, block_size, block_bytes, op, 0, row)
            else:
                one_column_32(dot8, chunk_bytes, op, 0, row)


@inner
def few_32(dot8, dot1, block_size, block_bytes, op, thread, n_threads):
    """All rows with the few columns of the step, a row with all of them before the next row."""
    chunk_bytes = 256 // block_size * block_bytes
    n_tokens, is_short = vec.load_i64(vec.load_i64(op + F.step) + STEP.n_tokens), vec.load_i64(op + F.n_cols) < 256
    turn = 0
    while turn < n_threads:
        first, last, turn = claim_rows(op, 8, CLAIM_BYTES, thread, n_threads, turn)
        for row in range(first, last):
            for c in range(n_tokens if is_short else 0):
                short_row_32(dot1, block_size, block_bytes, op, c, row)
            for c in range(0, 0 if is_short else n_tokens, 4):
                if n_tokens - c >= 3:
                    four_columns_32(dot8, chunk_bytes, op, c, row)
                elif n_tokens - c == 2:
                    two_columns_32(dot8, chunk_bytes, op, c, row)
                else:
                    one_column_32(dot8, chunk_bytes, op, c, row)

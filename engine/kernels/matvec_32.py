"""Decode of types with blocks of 32 weights or more: rows times activations in q8_0 form.

out[t] = sum over blocks of d * d_y[t] * (weights @ q_y[t]), f32; see ``matvec``.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matvec import (
    Phases,
    clear_sums,
    last_phase,
    row_kernels,
    rows_in_order,
    store_result,
)
from engine.kernels.records import MATMUL as F


@inner
def fold_i16(p04, p15, p26, p37):
    """Return the sums of eight blocks in order, given pairs of blocks in the halves of i16x16.

    Four lanes must fit into int16.
    """
    return vec.maddwd(
        vec.fold_twos(vec.fold_fours(p04, p15), vec.fold_fours(p26, p37)), vec.splat_i16x16(1)
    )


@inner
def fold_i16_wide_sums(p04, p15, p26, p37):
    """Compute ``fold_i16`` with sums of four in int32, where only two lanes fit into int16."""
    ones = vec.splat_i16x16(1)
    return vec.fold_neighbours(
        vec.maddwd(vec.fold_fours(p04, p15), ones), vec.maddwd(vec.fold_fours(p26, p37), ones)
    )


@inner
def fold_i32(p04, p15, p26, p37):
    """Compute ``fold_i16`` from i32x8."""
    return vec.fold_neighbours(vec.fold_neighbours(p04, p15), vec.fold_neighbours(p26, p37))


@inner
def eight_blocks(pair, fold, block_bytes, block, y):
    """Return the integer products of eight blocks of 32 weights in a row; lane = block.

    Activations are in the order of ``buffers.PAIRED_32``.

    Args:
        pair: (block, other, y_low, y_high) -> products of two blocks, one in each half of a
            register. One register of activations holds the first sixteen of both blocks, the
            other the last sixteen.
        fold: ``fold_i16`` or ``fold_i16_wide_sums`` if ``pair`` returns i16x16, ``fold_i32`` if it
            returns i32x8.
    """
    second = block_bytes
    third = 2 * block_bytes
    fourth = 3 * block_bytes
    fifth = block + 4 * block_bytes
    return fold(
        pair(block, fifth, vec.load_i8x32(y), vec.load_i8x32(y + 32)),
        pair(block + second, fifth + second, vec.load_i8x32(y + 64), vec.load_i8x32(y + 96)),
        pair(block + third, fifth + third, vec.load_i8x32(y + 128), vec.load_i8x32(y + 160)),
        pair(block + fourth, fifth + fourth, vec.load_i8x32(y + 192), vec.load_i8x32(y + 224)),
    )


@inner
def by_block(low, high):
    """Return a register for each of two blocks, given their lower and upper sixteen bytes."""
    return vec.join_i8(vec.low_half_i8(low), vec.low_half_i8(high)), vec.join_i8(
        vec.high_half_i8(low), vec.high_half_i8(high)
    )


@inner
def eight_groups(weights, sums_of, block_bytes, block, y):
    """Compute ``eight_blocks`` if one operation sums a block (``simd.group_sums``).

    Args:
        weights: (block, other) -> lower sixteen bytes of two blocks, one in each half, and the
            upper ones.
    """
    second = block_bytes
    third = 2 * block_bytes
    fourth = 3 * block_bytes
    fifth = block + 4 * block_bytes
    (w0, w4) = by_block(*weights(block, fifth))
    (w1, w5) = by_block(*weights(block + second, fifth + second))
    (w2, w6) = by_block(*weights(block + third, fifth + third))
    (w3, w7) = by_block(*weights(block + fourth, fifth + fourth))
    y0, y4 = by_block(vec.load_i8x32(y), vec.load_i8x32(y + 32))
    y1, y5 = by_block(vec.load_i8x32(y + 64), vec.load_i8x32(y + 96))
    y2, y6 = by_block(vec.load_i8x32(y + 128), vec.load_i8x32(y + 160))
    y3, y7 = by_block(vec.load_i8x32(y + 192), vec.load_i8x32(y + 224))
    return vec.join_i32(
        sums_of(w0, w1, w2, w3, y0, y1, y2, y3), sums_of(w4, w5, w6, w7, y4, y5, y6, y7)
    )


@inner
def one_block_i16(pair, block, y):
    """Return the integer product of one block with activations in order, if ``pair`` returns
    i16x16."""
    products = pair(block, block, vec.broadcast_16_bytes(y), vec.broadcast_16_bytes(y + 16))
    return vec.sum_i32x4(vec.low_half_i32(vec.maddwd(products, vec.splat_i16x16(1))))


@inner
def one_block_i32(pair, block, y):
    """Return the integer product of one block, if ``pair`` returns i32x8."""
    return vec.sum_i32x4(
        vec.low_half_i32(
            pair(block, block, vec.broadcast_16_bytes(y), vec.broadcast_16_bytes(y + 16))
        )
    )


@inner
def token_32(op, c):
    """Return the addresses of token c's activations in q8_0 form: (c, q, d, sums)."""
    n_cols = vec.load_i64(op + F.n_cols)
    token_bytes = n_cols if n_cols < 256 else (n_cols + 255) & ~255
    offset = c * (token_bytes // 32) * 4
    return (
        c,
        vec.load_i64(op + F.q) + c * token_bytes,
        vec.load_i64(op + F.d) + offset,
        vec.load_i64(op + F.sums) + offset,
    )


def row_kernels_32(dot8, dot1, block_bytes, block_size=32, long_rows=(None, None)):
    """Make ``matvec`` and ``small_batch``.

    Args:
        dot8: (block, y, d_y, sums, acc) -> acc, adds 256 weights. d_y and sums are addresses,
            acc is f32x8: lane = 32 weights.
        dot1: (block, y, d_y, sums) -> f32, the value of one block, for rows of fewer weights.
        block_size: 32, 64 or 128 weights; activations have a scale for 32.
        long_rows: Other kernels than those of ``dot8`` for rows of at least 256 weights: (matvec
            or None, small_batch or None).
    """

    @inner
    def short_row(op, c, row, scratch):
        _, q, d, sums = token_32(op, c)
        total = np.float32(0.0)
        block = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
        for i in range(0, vec.load_i64(op + F.n_cols) // 32, block_size // 32):
            total += dot1(block, q + 32 * i, d + 4 * i, sums + 4 * i)
            block += block_bytes
        store_result(op, c, row, total)

    @inner
    def add(shared, token, acc):
        (block, i) = shared
        (_, q, d, sums) = token
        return dot8(block, q + 256 * i, d + 32 * i, sums + 32 * i, acc)

    phases = Phases(
        token_32,
        clear_sums,
        add,
        last_phase(vec.sum_f32x8),
        256 // block_size * block_bytes,
        may_overlap=True,
    )

    def rows(whole_rows, is_small_batch):
        whole_rows = inner(whole_rows)
        short_rows = inner(rows_in_order(short_row, is_small_batch))

        def rows_of_any_length(op, thread, n_threads):
            if vec.load_i64(op + F.n_cols) < 256:
                short_rows(op, thread, n_threads)
            else:
                whole_rows(op, thread, n_threads)

        return rows_of_any_length

    matvec, small_batch = row_kernels(phases)
    return (
        rows(long_rows[0] or matvec, is_small_batch=False),
        rows(long_rows[1] or small_batch, is_small_batch=True),
    )

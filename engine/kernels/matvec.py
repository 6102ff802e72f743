"""Weight rows times one activation column: the loops of decode, shared by the quantised types.

A type supplies ``dot``, which adds one block's contribution to f32 lanes; the loops walk contiguous rows and prefetch
ahead of them. Distances in bytes were swept per type (PERFORMANCE.md).
"""

import numpy as np

from engine.jit import inner
from engine.kernels.share import claim_rows
from engine.records import MATMUL as F
from engine.simd import (
    add,
    fadd,
    fma,
    fold_fours,
    fold_neighbours,
    fold_twos,
    fsub,
    load_f32,
    load_f32x8,
    load_i8x32,
    load_i64,
    low_half_i32,
    maddubs,
    maddwd,
    prefetch_l2,
    splat_f32x8,
    splat_i16x16,
    store_f32,
    sum_f32x8,
    sum_i32x4,
)


@inner
def finish(op, row, value):
    """Write one row's result, with the bias or residual added where the record names one."""
    add = load_i64(op + F.add)
    if add != 0:
        value = value + load_f32(add + 4 * row)
    store_f32(load_i64(op + F.out) + 4 * row, value)


@inner
def prefetch_block(at, n_bytes):
    """Ask for the cache lines of the next ``n_bytes``, at most 320; without a loop, whose branches would cost more."""
    prefetch_l2(at)
    if n_bytes > 64:
        prefetch_l2(at + 64)
    if n_bytes > 128:
        prefetch_l2(at + 128)
    if n_bytes > 192:
        prefetch_l2(at + 192)
    if n_bytes > 256:
        prefetch_l2(at + 256)


@inner
def matvec_k(dot, block_bytes, far_bytes, op, thread, n_threads):
    """Rows of 256-weight blocks against activations in q8_k form.

    Args:
        dot: (block, y, d_y, sums, acc, acc_min) -> (acc, acc_min), f32x8; the result is their difference.
        block_bytes: type_size of the quantised type.
        far_bytes: how far ahead lines are asked for.
    """
    weights, row_bytes = load_i64(op + F.weights), load_i64(op + F.row_bytes)
    n_blocks = load_i64(op + F.n_cols) // 256
    q, d, sums = load_i64(op + F.q), load_i64(op + F.d), load_i64(op + F.sums)
    turn = 0
    while turn < n_threads:
        first, last, turn = claim_rows(op, 8, thread, n_threads, turn)
        for row in range(first, last):
            acc, acc_min = splat_f32x8(0.0), splat_f32x8(0.0)
            block = weights + row * row_bytes
            for i in range(n_blocks):
                prefetch_block(block + far_bytes, block_bytes)
                acc, acc_min = dot(block, q + 256 * i, load_f32(d + 4 * i), sums + 48 * i, acc, acc_min)
                block += block_bytes
            finish(op, row, sum_f32x8(fsub(acc, acc_min)))


@inner
def four_groups(weights, y, s0, s1, s2, s3):
    """Integer contribution of 128 weights with eight scales; a scale register holds two, one in each half.

    Args:
        weights: four i8x32, unsigned, at most 7 bits.
    """
    w0, w1, w2, w3 = weights
    return add(
        add(maddwd(s0, maddubs(w0, load_i8x32(y))), maddwd(s1, maddubs(w1, load_i8x32(y + 32)))),
        add(maddwd(s2, maddubs(w2, load_i8x32(y + 64))), maddwd(s3, maddubs(w3, load_i8x32(y + 96)))),
    )


@inner
def fold_i16(p04, p15, p26, p37):
    """Sums of eight blocks in order, from pairs of blocks in the halves of i16x16; four lanes must fit into int16."""
    return maddwd(fold_twos(fold_fours(p04, p15), fold_fours(p26, p37)), splat_i16x16(1))


@inner
def fold_i32(p04, p15, p26, p37):
    """The same from i32x8."""
    return fold_neighbours(fold_neighbours(p04, p15), fold_neighbours(p26, p37))


@inner
def eight_blocks(pair, fold, block_bytes, block, y):
    """Integer products of eight blocks of 32 weights in a row, lane = block.

    Args:
        pair: (block, y, other, y_other) -> products of two blocks, one in each half of a register.
        fold: ``fold_i16`` or ``fold_i32``, as ``pair`` returns i16x16 or i32x8.
    """
    far, y_far = block + 4 * block_bytes, y + 128
    return fold(
        pair(block, y, far, y_far),
        pair(block + block_bytes, y + 32, far + block_bytes, y_far + 32),
        pair(block + 2 * block_bytes, y + 64, far + 2 * block_bytes, y_far + 64),
        pair(block + 3 * block_bytes, y + 96, far + 3 * block_bytes, y_far + 96),
    )


@inner
def one_block_i16(pair, block, y):
    """Integer product of one block, where ``pair`` returns i16x16."""
    return sum_i32x4(low_half_i32(maddwd(pair(block, y, block, y), splat_i16x16(1))))


@inner
def one_block_i32(pair, block, y):
    """Integer product of one block, where ``pair`` returns i32x8."""
    return sum_i32x4(low_half_i32(pair(block, y, block, y)))


@inner
def matvec_32(dot8, dot1, block_bytes, far_bytes, op, thread, n_threads):
    """Rows of 32-weight blocks against activations in q8_0 form, eight blocks at a time: lane = block.

    Args:
        dot8: (block, y, d_y, sums, acc) -> acc, adds eight blocks; d_y and sums are addresses, acc is f32x8.
        dot1: (block, y, d_y, sums) -> f32, one block's value, for what is left of a row.
    """
    weights, row_bytes = load_i64(op + F.weights), load_i64(op + F.row_bytes)
    n_blocks = load_i64(op + F.n_cols) // 32
    q, d, sums = load_i64(op + F.q), load_i64(op + F.d), load_i64(op + F.sums)
    n_eights = n_blocks & ~7
    turn = 0
    while turn < n_threads:
        first, last, turn = claim_rows(op, 8, thread, n_threads, turn)
        for row in range(first, last):
            acc, rest = splat_f32x8(0.0), np.float32(0.0)
            block = weights + row * row_bytes
            for i in range(0, n_eights, 8):
                prefetch_block(block + far_bytes, 8 * block_bytes)
                acc = dot8(block, q + 32 * i, d + 4 * i, sums + 4 * i, acc)
                block += 8 * block_bytes
            for i in range(n_eights, n_blocks):
                rest += dot1(block, q + 32 * i, d + 4 * i, sums + 4 * i)
                block += block_bytes
            finish(op, row, sum_f32x8(acc) + rest)


@inner
def matvec_float(load8, load1, item_bytes, far_bytes, op, thread, n_threads):
    """Rows of floats against f32 activations, four accumulators of eight lanes.

    Args:
        load8: (address) -> f32x8.
        load1: (address) -> f32, for what is left of a row.
        item_bytes: bytes of a weight.
    """
    weights, row_bytes = load_i64(op + F.weights), load_i64(op + F.row_bytes)
    n_cols, y = load_i64(op + F.n_cols), load_i64(op + F.q)
    n_32s, n_8s = n_cols & ~31, n_cols & ~7
    turn = 0
    while turn < n_threads:
        first, last, turn = claim_rows(op, 8, thread, n_threads, turn)
        for row in range(first, last):
            a0, a1, a2, a3 = splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0)
            rest = np.float32(0.0)
            w = weights + row * row_bytes
            for k in range(0, n_32s, 32):
                at, y_at = w + item_bytes * k, y + 4 * k
                prefetch_block(at + far_bytes, 32 * item_bytes)
                a0 = fma(load8(at), load_f32x8(y_at), a0)
                a1 = fma(load8(at + 8 * item_bytes), load_f32x8(y_at + 32), a1)
                a2 = fma(load8(at + 16 * item_bytes), load_f32x8(y_at + 64), a2)
                a3 = fma(load8(at + 24 * item_bytes), load_f32x8(y_at + 96), a3)
            for k in range(n_32s, n_8s, 8):
                a0 = fma(load8(w + item_bytes * k), load_f32x8(y + 4 * k), a0)
            for k in range(n_8s, n_cols):
                rest += load1(w + item_bytes * k) * load_f32(y + 4 * k)
            finish(op, row, sum_f32x8(fadd(fadd(a0, a1), fadd(a2, a3))) + rest)

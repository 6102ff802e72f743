"""MXFP4: 32 weights of 4 bits, floats of two exponent bits and one of mantissa, with a power of two as their scale.

    e   u8        exponent of the scale
    qs  16 bytes  weights 0..15 in the low nibbles, 16..31 in the high ones
                  1 + 16 = 17

A weight is ``2^(e - 128) * VALUES[q]``: the values are kept doubled, as whole numbers. Layout and table: ggml-common.h,
block_mxfp4 and kvalues_fp4.
"""

import numpy as np

from engine.jit import inner, kernel
from engine.kernels.embed import embed_rows
from engine.kernels.matmul_32 import ROW_D, lowered_by, sum_two_fours, walk_32
from engine.kernels.matvec_32 import eight_blocks, few_32, fold_i16_soon, matvec_32, one_block_i16
from engine.kernels.tiles import NARROW, matmul_tiles
from engine.simd import (
    add,
    and_,
    broadcast_16_bytes,
    constant_i8x32,
    f32_of_i32x8,
    fma,
    fmul,
    high_half_i8,
    i16_of_i8,
    join_i8,
    load_exponent,
    load_exponents_strided,
    load_f32,
    load_f32x8,
    load_i8x32,
    load_i32,
    load_two_i8x16,
    load_u8,
    lookup16,
    low_half_i8,
    maddubs,
    maddwd,
    pairs_i16,
    rolled,
    shift_right,
    splat_i8x32,
    store_f32,
    store_i8x32,
)

BLOCK_BYTES = 17
VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
OFFSET = 12

raised_values = constant_i8x32([value + OFFSET for value in VALUES] * 2)


@inner
def value_of(q):
    """The table's entry of one weight."""
    return VALUES[q]


@inner
def pair(block, other, y_low, y_high):
    """Products of two blocks as i16x16, one block in each half; weights are 12 too large."""
    qs, nibble = load_two_i8x16(block + 1, other + 1), splat_i8x32(15)
    low, high = lookup16(raised_values(), and_(qs, nibble)), lookup16(raised_values(), and_(shift_right(qs, 4), nibble))
    return add(maddubs(low, y_low), maddubs(high, y_high))


@inner
def dot8(block, y, d_y, sums, acc):
    """Add the products of eight blocks with 256 activations."""
    t = eight_blocks(pair, fold_i16_soon, BLOCK_BYTES, block, y)
    t = add(t, maddwd(pairs_i16(-OFFSET, 0), i16_of_i8(load_i8x32(sums))))
    return fma(fmul(load_exponents_strided(block, BLOCK_BYTES), load_f32x8(d_y)), f32_of_i32x8(t), acc)


@inner
def dot1(block, y, d_y, sums):
    """Value of one block's products with 32 activations."""
    return load_exponent(block) * load_f32(d_y) * np.float32(one_block_i16(pair, block, y) - OFFSET * load_i32(sums))


@inner
def weights(block):
    """The 32 weights of a block as bytes, 12 too large."""
    qs = broadcast_16_bytes(block + 1)
    both = and_(join_i8(low_half_i8(qs), high_half_i8(shift_right(qs, 4))), splat_i8x32(15))
    return lookup16(raised_values(), both)


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile."""
    for b in range(n_live // 32):
        at = block + BLOCK_BYTES * rolled(b)
        store_i8x32(out + 32 * b, weights(at))
        store_f32(out + ROW_D + 4 * b, load_exponent(at))


finish, value = lowered_by(12)
walk = walk_32(sum_two_fours, value)


@inner
def dequantize(block, out):
    """Write the 32 weights of a block as f32."""
    d = load_exponent(block)
    for k in range(16):
        q = load_u8(block + 1 + k)
        store_f32(out + 4 * k, d * value_of(q & 15))
        store_f32(out + 4 * (k + 16), d * value_of(q >> 4))


@kernel
def embed(op, thread, n_threads):
    """Rows by token id."""
    embed_rows(dequantize, 32, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matvec(op, thread, n_threads):
    """Rows times one column."""
    matvec_32(dot8, dot1, 32, BLOCK_BYTES, op, thread, n_threads)


@kernel
def few(op, thread, n_threads):
    """Rows times a few columns."""
    few_32(dot8, dot1, 32, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matmul(op, thread, n_threads):
    """Rows times the columns of a block."""
    matmul_tiles(unpack_row, finish, walk, NARROW, 256, 8 * BLOCK_BYTES, op, thread, n_threads)

"""MXFP4: 32 weights of 4 bits, floats of two exponent bits and one of mantissa, with a power of two as their scale.

    e   u8        exponent of the scale
    qs  16 bytes  weights 0..15 in the low nibbles, 16..31 in the high ones
                  1 + 16 = 17

A weight is ``2^(e - 128) * VALUES[q]``: the values are kept doubled, as whole numbers. Layout and table: ggml-common.h,
block_mxfp4 and kvalues_fp4.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.embed import embed_rows
from engine.kernels.matmul_32 import ROW_D, lowered_by, sum_two_fours, walk_32
from engine.kernels.matvec_32 import eight_blocks, few_32, fold_i16_soon, matvec_32, one_block_i16
from engine.kernels.tiles import NARROW, matmul_tiles

BLOCK_BYTES = 17
VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
OFFSET = 12

raised_values = vec.constant_i8x32([value + OFFSET for value in VALUES] * 2)


@inner
def value_of(q):
    """The table's entry of one weight."""
    return VALUES[q]


@inner
def pair(block, other, y_low, y_high):
    """Products of two blocks as i16x16, one block in each half; weights are 12 too large."""
    qs, nibble = vec.load_two_i8x16(block + 1, other + 1), vec.splat_i8x32(15)
    low, high = (
        vec.lookup16(raised_values(), vec.and_(qs, nibble)),
        vec.lookup16(raised_values(), vec.and_(vec.shift_right(qs, 4), nibble)),
    )
    return vec.add(vec.maddubs(low, y_low), vec.maddubs(high, y_high))


@inner
def dot8(block, y, d_y, sums, acc):
    """Add the products of eight blocks with 256 activations."""
    t = eight_blocks(pair, fold_i16_soon, BLOCK_BYTES, block, y)
    t = vec.add(t, vec.maddwd(vec.pairs_i16(-OFFSET, 0), vec.i16_of_i8(vec.load_i8x32(sums))))
    return vec.fma(
        vec.fmul(vec.load_exponents_strided(block, BLOCK_BYTES), vec.load_f32x8(d_y)), vec.f32_of_i32x8(t), acc
    )


@inner
def dot1(block, y, d_y, sums):
    """Value of one block's products with 32 activations."""
    return (
        vec.load_exponent(block)
        * vec.load_f32(d_y)
        * np.float32(one_block_i16(pair, block, y) - OFFSET * vec.load_i32(sums))
    )


@inner
def weights(block):
    """The 32 weights of a block as bytes, 12 too large."""
    qs = vec.broadcast_16_bytes(block + 1)
    both = vec.and_(vec.join_i8(vec.low_half_i8(qs), vec.high_half_i8(vec.shift_right(qs, 4))), vec.splat_i8x32(15))
    return vec.lookup16(raised_values(), both)


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile."""
    for b in range(n_live // 32):
        at = block + BLOCK_BYTES * vec.rolled(b)
        vec.store_i8x32(out + 32 * b, weights(at))
        vec.store_f32(out + ROW_D + 4 * b, vec.load_exponent(at))


finish, value = lowered_by(12)
walk = walk_32(sum_two_fours, value)


@inner
def dequantize(block, out):
    """Write the 32 weights of a block as f32."""
    d = vec.load_exponent(block)
    for k in range(16):
        q = vec.load_u8(block + 1 + k)
        vec.store_f32(out + 4 * k, d * value_of(q & 15))
        vec.store_f32(out + 4 * (k + 16), d * value_of(q >> 4))


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

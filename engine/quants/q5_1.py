"""Q5_1: 32 weights of 5 bits with one scale and one minimum.

    d   f16       scale
    m   f16       minimum
    qh  4 bytes   upper bit of weight l in bit l
    qs  16 bytes  lower 4 bits: weights 0..15 in the low nibbles, 16..31 in the high ones
                  2 + 2 + 4 + 16 = 24

A weight is ``d * q + m``. Layout: ggml-common.h, block_q5_1.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.embed import embed_rows
from engine.kernels.matmul_32 import ROW_D, ROW_M, sum_two_fours, walk_32, with_minimum
from engine.kernels.matvec_32 import eight_blocks, few_32, fold_i16_soon, matvec_32, one_block_i16
from engine.kernels.tiles import NARROW, leave_tile, matmul_tiles

BLOCK_BYTES = 24
QH, QS = 4, 8


@inner
def pair(block, other, y_low, y_high):
    """Products of two blocks as i16x16, one block in each half; two lanes of them fit into int16."""
    qs, qh = vec.load_two_i8x16(block + QS, other + QS), vec.broadcast_two_4_bytes(block + QH, other + QH)
    nibble = vec.splat_i8x32(15)
    low = vec.or_(vec.and_(qs, nibble), vec.fifth_bits_low(qh))
    high = vec.or_(vec.and_(vec.shift_right(qs, 4), nibble), vec.fifth_bits_high(qh))
    return vec.add(vec.maddubs(low, y_low), vec.maddubs(high, y_high))


@inner
def dot8(block, y, d_y, sums, acc):
    """Add the products of eight blocks with 256 activations."""
    d_y8 = vec.load_f32x8(d_y)
    d, m = (
        vec.fmul(vec.load_f16x8_strided(block, BLOCK_BYTES), d_y8),
        vec.fmul(vec.load_f16x8_strided(block + 2, BLOCK_BYTES), d_y8),
    )
    products = vec.f32_of_i32x8(eight_blocks(pair, fold_i16_soon, BLOCK_BYTES, block, y))
    return vec.fma(m, vec.f32_of_i32x8(vec.load_i32x8(sums)), vec.fma(d, products, acc))


@inner
def dot1(block, y, d_y, sums):
    """Value of one block's products with 32 activations."""
    product, total = np.float32(one_block_i16(pair, block, y)), np.float32(vec.load_i32(sums))
    return (vec.load_f16(block) * product + vec.load_f16(block + 2) * total) * vec.load_f32(d_y)


@inner
def weights(block):
    """The 32 weights of a block as bytes."""
    qs = vec.broadcast_16_bytes(block + QS)
    both = vec.and_(vec.join_i8(vec.low_half_i8(qs), vec.high_half_i8(vec.shift_right(qs, 4))), vec.splat_i8x32(15))
    return vec.or_(both, vec.fifth_bits(vec.broadcast_4_bytes(block + QH)))


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile."""
    for b in range(n_live // 32):
        at = block + BLOCK_BYTES * vec.rolled(b)
        vec.store_i8x32(out + 32 * b, weights(at))
        vec.store_f32(out + ROW_D + 4 * b, vec.load_f16(at))
        vec.store_f32(out + ROW_M + 4 * b, vec.load_f16(at + 2))


walk = walk_32(sum_two_fours, with_minimum)


@inner
def dequantize(block, out):
    """Write the 32 weights of a block as f32."""
    d, m = vec.load_f16(block), vec.load_f16(block + 2)
    high = vec.load_u32(block + QH)
    for k in range(16):
        q = vec.load_u8(block + QS + k)
        low_q, high_q = (q & 15) | (((high >> k) & 1) << 4), (q >> 4) | (((high >> (k + 16)) & 1) << 4)
        vec.store_f32(out + 4 * k, d * low_q + m)
        vec.store_f32(out + 4 * (k + 16), d * high_q + m)


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
    matmul_tiles(unpack_row, leave_tile, walk, NARROW, 256, 8 * BLOCK_BYTES, op, thread, n_threads)

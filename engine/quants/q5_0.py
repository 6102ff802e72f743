"""Q5_0: 32 weights of 5 bits with one scale.

    d   f16       scale
    qh  4 bytes   upper bit of weight l in bit l
    qs  16 bytes  lower 4 bits: weights 0..15 in the low nibbles, 16..31 in the high ones
                  2 + 4 + 16 = 22

A weight is ``d * (q - 16)``. Layout: ggml-common.h, block_q5_0.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.embed import embed_rows
from engine.kernels.matmul_32 import ROW_D, lowered_by, sum_two_fours, walk_32
from engine.kernels.matvec_32 import eight_blocks, few_32, fold_i16_soon, matvec_32, one_block_i16
from engine.kernels.tiles import NARROW, matmul_tiles

BLOCK_BYTES = 22
QH, QS = 2, 6


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
    t = eight_blocks(pair, fold_i16_soon, BLOCK_BYTES, block, y)
    t = vec.sub(t, vec.shift_lanes_left(vec.load_i32x8(sums), 4))
    return vec.fma(vec.fmul(vec.load_f16x8_strided(block, BLOCK_BYTES), vec.load_f32x8(d_y)), vec.f32_of_i32x8(t), acc)


@inner
def dot1(block, y, d_y, sums):
    """Value of one block's products with 32 activations."""
    return vec.load_f16(block) * vec.load_f32(d_y) * np.float32(one_block_i16(pair, block, y) - 16 * vec.load_i32(sums))


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


finish, value = lowered_by(16)
walk = walk_32(sum_two_fours, value)


@inner
def dequantize(block, out):
    """Write the 32 weights of a block as f32."""
    d = vec.load_f16(block)
    high = vec.load_u32(block + QH)
    for k in range(16):
        q = vec.load_u8(block + QS + k)
        low_q, high_q = (q & 15) | (((high >> k) & 1) << 4), (q >> 4) | (((high >> (k + 16)) & 1) << 4)
        vec.store_f32(out + 4 * k, d * (np.int32(low_q) - 16))
        vec.store_f32(out + 4 * (k + 16), d * (np.int32(high_q) - 16))


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

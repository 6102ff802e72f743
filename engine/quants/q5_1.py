"""Q5_1: 32 weights of 5 bits with one scale and one minimum.

    d   f16       scale
    m   f16       minimum
    qh  4 bytes   upper bit of weight l in bit l
    qs  16 bytes  lower 4 bits: weights 0..15 in the low nibbles, 16..31 in the high ones
                  2 + 2 + 4 + 16 = 24

A weight is ``d * q + m``. Layout: ggml-common.h, block_q5_1.
"""

import numpy as np

from engine.jit import inner, kernel
from engine.kernels.embed import embed_rows
from engine.kernels.matmul_32 import ROW_D, ROW_M, sum_two_fours, walk_32, with_minimum
from engine.kernels.matvec_32 import eight_blocks, few_32, fold_i16_soon, matvec_32, one_block_i16
from engine.kernels.tiles import NARROW, leave_tile, matmul_tiles
from engine.simd import (
    add,
    and_,
    broadcast_4_bytes,
    broadcast_16_bytes,
    broadcast_two_4_bytes,
    f32_of_i32x8,
    fifth_bits,
    fifth_bits_high,
    fifth_bits_low,
    fma,
    fmul,
    high_half_i8,
    join_i8,
    load_f16,
    load_f16x8_strided,
    load_f32,
    load_f32x8,
    load_i32,
    load_i32x8,
    load_two_i8x16,
    load_u8,
    load_u32,
    low_half_i8,
    maddubs,
    or_,
    rolled,
    shift_right,
    splat_i8x32,
    store_f32,
    store_i8x32,
)

BLOCK_BYTES = 24
QH, QS = 4, 8


@inner
def pair(block, other, y_low, y_high):
    """Products of two blocks as i16x16, one block in each half; two lanes of them fit into int16."""
    qs, qh = load_two_i8x16(block + QS, other + QS), broadcast_two_4_bytes(block + QH, other + QH)
    nibble = splat_i8x32(15)
    low = or_(and_(qs, nibble), fifth_bits_low(qh))
    high = or_(and_(shift_right(qs, 4), nibble), fifth_bits_high(qh))
    return add(maddubs(low, y_low), maddubs(high, y_high))


@inner
def dot8(block, y, d_y, sums, acc):
    """Add the products of eight blocks with 256 activations."""
    d_y8 = load_f32x8(d_y)
    d, m = fmul(load_f16x8_strided(block, BLOCK_BYTES), d_y8), fmul(load_f16x8_strided(block + 2, BLOCK_BYTES), d_y8)
    products = f32_of_i32x8(eight_blocks(pair, fold_i16_soon, BLOCK_BYTES, block, y))
    return fma(m, f32_of_i32x8(load_i32x8(sums)), fma(d, products, acc))


@inner
def dot1(block, y, d_y, sums):
    """Value of one block's products with 32 activations."""
    product, total = np.float32(one_block_i16(pair, block, y)), np.float32(load_i32(sums))
    return (load_f16(block) * product + load_f16(block + 2) * total) * load_f32(d_y)


@inner
def weights(block):
    """The 32 weights of a block as bytes."""
    qs = broadcast_16_bytes(block + QS)
    both = and_(join_i8(low_half_i8(qs), high_half_i8(shift_right(qs, 4))), splat_i8x32(15))
    return or_(both, fifth_bits(broadcast_4_bytes(block + QH)))


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile."""
    for b in range(n_live // 32):
        at = block + BLOCK_BYTES * rolled(b)
        store_i8x32(out + 32 * b, weights(at))
        store_f32(out + ROW_D + 4 * b, load_f16(at))
        store_f32(out + ROW_M + 4 * b, load_f16(at + 2))


walk = walk_32(sum_two_fours, with_minimum)


@inner
def dequantize(block, out):
    """Write the 32 weights of a block as f32."""
    d, m = load_f16(block), load_f16(block + 2)
    high = load_u32(block + QH)
    for k in range(16):
        q = load_u8(block + QS + k)
        low_q, high_q = (q & 15) | (((high >> k) & 1) << 4), (q >> 4) | (((high >> (k + 16)) & 1) << 4)
        store_f32(out + 4 * k, d * low_q + m)
        store_f32(out + 4 * (k + 16), d * high_q + m)


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

"""NVFP4: 64 weights of 4 bits, floats with two exponent bits and one of mantissa, and a small float
for each sixteen as scale.

    d   4 bytes   scales without a sign, four exponent bits and three of mantissa; 0x7F means 0
    qs  32 bytes  eight bytes for sixteen weights: 0..7 in the low nibbles, 8..15 in the high ones
                  4 + 32 = 36

A weight is ``d / 2 * VALUES[q]``: the values are doubled, so they are integers. A file may
multiply each matrix, or each expert, by one more number (``.scale``). Layout: ggml-common.h,
block_nvfp4.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matmul_32 import (
    ROW_D,
    add_sixteen,
    add_tile,
    store_sums_of_16,
    sum_16_u5,
    with_offset,
)
from engine.kernels.matmul_sixteens import product_16
from engine.kernels.matvec_32 import row_kernels_32
from engine.kernels.tiles import Tiles, bytes_at, loop_over_tokens
from engine.kernels.type_kernels import type_kernels
from engine.machine.level import SIXTEEN_TOKENS
from engine.quants.mxfp4 import OFFSET, RAISED_VALUES, VALUES

BLOCK_BYTES = 36

values = vec.constant_i8x32(VALUES * 2)
raised_values = vec.constant_i8x32(RAISED_VALUES * 2)


@inner
def scale(block, k):
    """Return half of scale k of a block."""
    bits = vec.load_u8(block + k)
    return vec.f32_of_half_bits(0 if bits == 0x7F else (bits & 0x7F) << 7) * np.float32(128.0)


@inner
def sixteens_in_lanes(qs, table):
    """Return a block's weights, given a table: sixteens 0 and 2, then sixteens 1 and 3."""
    low = vec.and_(qs, vec.splat_i8x32(15))
    high = vec.high_nibbles(qs)
    low = vec.lookup16(table, low)
    high = vec.lookup16(table, high)
    return vec.even_quads(low, high), vec.odd_quads(low, high)


@inner
def sixteens(w, y, second):
    """Return the products of 32 weights with twice sixteen activations, four i32 for each
    sixteen."""
    ys = vec.load_two_i8x16(y, second)
    return vec.maddwd(vec.maddubs(vec.abs_i8(w), vec.with_sign_of(ys, w)), vec.splat_i16x16(1))


@inner
def one_block(block, y):
    """Return the products of a block as i32x8.

    Two lanes each are those of sixteens 0 and 1, then of sixteens 2 and 3.
    """
    even, odd = sixteens_in_lanes(vec.load_i8x32(block + 4), values())
    return vec.fold_neighbours(sixteens(even, y, y + 32), sixteens(odd, y + 16, y + 48))


@inner
def two_blocks(block, y, d_y, acc):
    """Add the products of two blocks with 128 activations."""
    t = vec.fold_neighbours(one_block(block, y), one_block(block + BLOCK_BYTES, y + 64))
    d = vec.fmul(vec.load_small_floats(block, block + BLOCK_BYTES), vec.spread_scales(d_y))
    return vec.fma(d, vec.f32_of_i32x8(t), acc)


@inner
def dot8(block, y, d_y, sums, acc):
    """Add the products of four blocks with 256 activations."""
    return two_blocks(block + 2 * BLOCK_BYTES, y + 128, d_y + 16, two_blocks(block, y, d_y, acc))


@inner
def number(block, k):
    """Return the index in the table of weight k of a block."""
    return (vec.load_u8(block + 4 + 8 * (k >> 4) + (k & 7)) >> (k >> 1 & 4)) & 15


@inner
def dot1(block, y, d_y, sums):
    """Return one block's products with 64 activations in order, scaled."""
    total = np.float32(0.0)
    for g in range(4):
        t = 0
        for k in range(vec.rolled(16 * g), 16 * g + 16):
            t += VALUES[number(block, k)] * vec.load_i8(y + k)
        total += scale(block, g) * vec.load_f32(d_y + 4 * (g >> 1)) * np.float32(t)
    return total


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile: weights 12 too large, and a scale for each sixteen."""
    for b in range(n_live // 64):
        even, odd = sixteens_in_lanes(
            vec.load_i8x32(block + BLOCK_BYTES * vec.rolled(b) + 4), raised_values()
        )
        vec.store_i8x32(out + 64 * b, vec.join_i8(vec.low_half_i8(even), vec.low_half_i8(odd)))
        vec.store_i8x32(
            out + 64 * b + 32, vec.join_i8(vec.high_half_i8(even), vec.high_half_i8(odd))
        )
    for g in range(n_live // 16):
        vec.store_f32(out + ROW_D + 4 * g, scale(block + BLOCK_BYTES * (vec.rolled(g) >> 2), g & 3))


finish, value = with_offset(OFFSET)


@inner
def tokens_by_sixteens(view, tile, y, c, i, n_live, acc, scratch):
    """Add the products of one tile with sixteen tokens."""
    _, d, _, _, n_padded = view
    for g in range(n_live // 16):
        product_16(y + 16 * g, n_live, tile + 256 * g, scratch)
        address = d + 4 * ((8 * i + (g >> 1)) * n_padded + c)
        add_sixteen(value, tile + 16 * ROW_D + 64 * g, scratch, address, address, acc)


@inner
def tokens_by_fours(view, tile, y, c, i, n_live, acc, scratch):
    """Add the products of one tile with four tokens.

    Activations have a scale for 32; sums of sixteen are computed here.
    """
    _, d, _, _, n_padded = view
    for g in range(n_live // 16):
        t = sum_16_u5(tile + 256 * g, y + 64 * g)
        store_sums_of_16(scratch, y + 64 * g)
        address = d + 4 * ((8 * i + (g >> 1)) * n_padded + c)
        scales = tile + 16 * ROW_D + 64 * g
        add_tile(value, scales, t, address, scratch, acc)


@inner
def dequantize(block, out):
    """Write the 64 weights of a block as f32."""
    for k in range(64):
        vec.store_f32(out + 4 * k, scale(block, k >> 4) * np.float32(VALUES[number(block, k)]))


multiply = loop_over_tokens(bytes_at, tokens_by_sixteens if SIXTEEN_TOKENS else tokens_by_fours)
rows = row_kernels_32(dot8, dot1, BLOCK_BYTES, block_size=64)
embed, matvec, small_batch, matmul = type_kernels(
    __name__, 64, BLOCK_BYTES, dequantize, rows, unpack_row, Tiles(multiply, finish)
)

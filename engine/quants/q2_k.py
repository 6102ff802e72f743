"""Q2_K: 256 weights of 2 bits in sixteen sub-blocks of 16, each with a 4-bit scale and a 4-bit
minimum.

    scales  16 bytes   scale in the low nibble, minimum in the high one
    qs      64 bytes   32 bytes for each half of the block (128 weights): weights l, l+32, l+64,
                       l+96 in bits 0-1, 2-3, 4-5, 6-7
    d       f16        scale of the scales
    dmin    f16        scale of the minima
                       16 + 64 + 2 + 2 = 84

A weight is ``d * scale * q - dmin * minimum``. Layout: ggml-common.h, block_q2_K.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matmul import (
    ROW_D,
    ROW_DMIN,
    ROW_MINIMA,
    minima_scaling,
    store_half,
    store_scales_of_16,
    tiles_k,
)
from engine.kernels.matvec_k import four_groups, row_kernels_k, two_bit_fields
from engine.kernels.row_pairs import kernels_in_pairs
from engine.kernels.row_pairs_k import fold_with_minima_of_16, scales_of_words, wide_phases
from engine.kernels.type_kernels import type_kernels
from engine.machine.level import TWO_ROWS

BLOCK_BYTES = 84
QS = 16
D = 80
DMIN = 82


@inner
def half(block, n):
    """Return the weights of one half of a block as bytes: four registers of 32."""
    return two_bit_fields(block + QS + 32 * n)


@inner
def dot(block, y, d_y, sums, acc, acc_min):
    """Add one block's products with 256 activations."""
    scales_and_minima = vec.load_i8x16(block)
    minima = vec.maddwd(
        vec.widen_u8x16(vec.and_(vec.shift_right(scales_and_minima, 4), vec.splat_i8x16(15))),
        vec.load_i16x16(sums),
    )
    d = vec.fmul(vec.load_f16x4(block + D - 4), vec.splat_f32x4(d_y))
    acc_min = vec.fma(vec.fourth_f32(d), vec.f32_of_i32x8(minima), acc_min)
    s = vec.widen_u8x16(vec.even_then_odd(vec.and_(scales_and_minima, vec.splat_i8x16(15))))
    low = four_groups(
        half(block, 0),
        y,
        vec.half_lane0(s),
        vec.half_lane1(s),
        vec.half_lane2(s),
        vec.half_lane3(s),
    )
    high = four_groups(
        half(block, 1),
        y + 128,
        vec.half_lane4(s),
        vec.half_lane5(s),
        vec.half_lane6(s),
        vec.half_lane7(s),
    )
    return vec.fma(vec.third_f32(d), vec.f32_of_i32x8(vec.add(low, high)), acc), acc_min


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile."""
    store_half(half(block, 0), out)
    store_half(half(block, 1), out + 128)
    scales_and_minima = vec.load_i8x16(block)
    s = vec.widen_u8x16(vec.and_(scales_and_minima, vec.splat_i8x16(15)))
    store_scales_of_16(s, out)
    vec.store_i16x16(
        out + ROW_MINIMA,
        vec.widen_u8x16(vec.and_(vec.shift_right(scales_and_minima, 4), vec.splat_i8x16(15))),
    )
    vec.store_f32(out + ROW_D, vec.load_f16(block + D))
    vec.store_f32(out + ROW_DMIN, -vec.load_f16(block + DMIN))


@inner
def dequantize(block, out):
    """Write the 256 weights of a block as f32."""
    d = vec.load_f16(block + D)
    dmin = vec.load_f16(block + DMIN)
    for g in range(16):
        scale_and_minimum = vec.load_u8(block + g)
        scale = d * (scale_and_minimum & 15)
        minimum = dmin * (scale_and_minimum >> 4)
        for k in range(16 * g, 16 * g + 16):
            q = (vec.load_u8(block + QS + 32 * (k >> 7) + (k & 31)) >> (2 * ((k >> 5) & 3))) & 3
            vec.store_f32(out + 4 * k, scale * q - minimum)


@inner
def half_of_two(first, second, n):
    """Compute ``half`` of two blocks, one in each half of four registers."""
    fields = vec.load_two_i8x32(first + QS + 32 * n, second + QS + 32 * n)
    mask = vec.splat_i8x64(3)
    return (
        vec.and_(fields, mask),
        vec.and_(vec.shift_right(fields, 2), mask),
        vec.and_(vec.shift_right(fields, 4), mask),
        vec.and_(vec.shift_right(fields, 6), mask),
    )


@inner
def unpack_two(first, second):
    """Return what ``wide_phases`` unpacks of two blocks."""
    (w0, w1, w2, w3) = half_of_two(first, second, 0)
    (w4, w5, w6, w7) = half_of_two(first, second, 1)
    scales_and_minima = vec.load_two_i8x16(first, second)
    nibble = vec.splat_i8x32(15)
    scales = vec.even_then_odd_of_two(vec.and_(scales_and_minima, nibble))
    m = vec.widen_u8x32(vec.and_(vec.shift_right(scales_and_minima, 4), nibble))
    four = vec.load_f16x4_of_two(first + D - 4, second + D - 4)
    terms = m, vec.third_of_two(four), vec.fourth_of_two(four)
    return (w0, w1, w2, w3, w4, w5, w6, w7), scales_of_words(vec.widen_u8x32(scales)), terms


if TWO_ROWS:
    rows = kernels_in_pairs(wide_phases(unpack_two, fold_with_minima_of_16, BLOCK_BYTES))
else:
    rows = row_kernels_k(dot, BLOCK_BYTES)
tiles = tiles_k(16, 16, minima_scaling)
embed, matvec, small_batch, matmul = type_kernels(
    __name__, 256, BLOCK_BYTES, dequantize, rows, unpack_row, tiles
)

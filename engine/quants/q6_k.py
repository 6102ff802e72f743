"""Q6_K: 256 weights of 6 bits in sixteen sub-blocks of 16, each with a signed 8-bit scale.

    ql      128 bytes  lower 4 bits; 64 bytes for each half of the block (128 weights): weights
                       0..63 of the half in the low nibbles, 64..127 in the high ones
    qh      64 bytes   upper 2 bits; 32 bytes for each half: weights l, l+32, l+64, l+96 in bits
                       0-1, 2-3, 4-5, 6-7
    scales  16 bytes   int8
    d       f16        scale of the scales
                       128 + 64 + 16 + 2 = 210

A weight is ``d * scale * (q - 32)``. Layout: ggml-common.h, block_q6_K.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matmul import (
    ROW_D,
    ROW_MINIMA,
    offset_scaling,
    store_half,
    store_scales_of_16,
    tiles_k,
)
from engine.kernels.matvec_k import row_kernels_k, sixteen_groups
from engine.kernels.row_pairs import kernels_in_pairs
from engine.kernels.row_pairs_k import fold_with_offsets_of_16, scales_of_words, wide_phases
from engine.kernels.type_kernels import type_kernels
from engine.machine.level import HAS_ARM64, HAS_F16C, TWO_ROWS

BLOCK_BYTES = 210
QH = 128
SCALES = 192
D = 208


@inner
def six_bits(low0, low1, qh):
    """Return the weights of one half as bytes from 0 to 63: four registers of 32 of each block.

    Args:
        low0, low1: The lower bits.
        qh: The upper bits.
    """
    nibble = vec.splat_like(qh, 15)
    two = vec.splat_like(qh, 48)
    return (
        vec.or_(vec.and_(low0, nibble), vec.and_(vec.shift_left(qh, 4), two)),
        vec.or_(vec.and_(low1, nibble), vec.and_(vec.shift_left(qh, 2), two)),
        vec.or_(vec.and_(vec.shift_right(low0, 4), nibble), vec.and_(qh, two)),
        vec.or_(vec.and_(vec.shift_right(low1, 4), nibble), vec.and_(vec.shift_right(qh, 2), two)),
    )


@inner
def half(block, n):
    """Return the weights of half n of a block."""
    return six_bits(
        vec.load_i8x32(block + 64 * n),
        vec.load_i8x32(block + 64 * n + 32),
        vec.load_i8x32(block + QH + 32 * n),
    )


@inner
def scale_of_four(block, d_y):
    """Return the block's scale times that of the activations.

    It is taken from four f16, so no register has to wait for it.
    """
    return vec.fourth_f32(vec.fmul(vec.load_f16x4(block + D - 6), vec.splat_f32x4(d_y)))


@inner
def scale_of_one(block, d_y):
    """Compute ``scale_of_four`` if f16 are widened by integer operations."""
    return vec.splat_f32x8(vec.load_f16(block + D) * d_y)


scale_of = scale_of_four if HAS_F16C else scale_of_one


@inner
def dot(block, y, d_y, sums, acc, acc_min):
    """Add one block's products with 256 activations."""
    scales = vec.load_i8x16(block + SCALES)
    offset = vec.shift_lanes_left(vec.maddwd(vec.widen_i8x16(scales), vec.load_i16x16(sums)), 5)
    s = vec.widen_i8x16(vec.even_then_odd(scales))
    products = sixteen_groups(half, block, y, s)
    total = vec.sub(products, offset)
    return vec.fma(scale_of(block, d_y), vec.f32_of_i32x8(total), acc), acc_min


@inner
def half_groups(block, y, n):
    """Return the sums of the eight sub-blocks of one half."""
    w0, w1, w2, w3 = half(block, n)
    low = vec.sums_of_16_u6(w0, w1, vec.load_i8x32(y), vec.load_i8x32(y + 32))
    return vec.join_i32(
        low, vec.sums_of_16_u6(w2, w3, vec.load_i8x32(y + 64), vec.load_i8x32(y + 96))
    )


@inner
def dot_by_groups(block, y, d_y, sums, acc, acc_min):
    """Compute ``dot`` with a lane for each sub-block of one half."""
    s = vec.widen_i8x16(vec.load_i8x16(block + SCALES))
    offset = vec.shift_lanes_left(vec.maddwd(s, vec.load_i16x16(sums)), 5)
    low = vec.mul(vec.i32_of_i16x8(vec.low_half_i16(s)), half_groups(block, y, 0))
    high = vec.mul(vec.i32_of_i16x8(vec.high_half_i16(s)), half_groups(block, y + 128, 1))
    return vec.fma(
        scale_of(block, d_y), vec.f32_of_i32x8(vec.sub(vec.add(low, high), offset)), acc
    ), acc_min


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile; the offset of 32 becomes minima of -32 scales."""
    store_half(half(block, 0), out)
    store_half(half(block, 1), out + 128)
    s = vec.widen_i8x16(vec.load_i8x16(block + SCALES))
    store_scales_of_16(s, out)
    vec.store_i16x16(out + ROW_MINIMA, vec.sub(vec.splat_i16x16(0), vec.shift_lanes_left(s, 5)))
    vec.store_f32(out + ROW_D, vec.load_f16(block + D))


@inner
def dequantize(block, out):
    """Write the 256 weights of a block as f32."""
    d = vec.load_f16(block + D)
    for k in range(256):
        n = k >> 7
        j = (k >> 5) & 3
        position = k & 31
        low = vec.load_u8(block + 64 * n + 32 * (j & 1) + position) >> (4 * (j >> 1))
        high = vec.load_u8(block + QH + 32 * n + position) >> (2 * j)
        q = ((low & 15) | ((high & 3) << 4)) - 32
        vec.store_f32(out + 4 * k, d * vec.load_i8(block + SCALES + (k >> 4)) * q)


@inner
def half_of_two(first, second, n):
    """Return the weights of half n of two blocks, one block in each half of the registers."""
    return six_bits(
        vec.load_two_i8x32(first + 64 * n, second + 64 * n),
        vec.load_two_i8x32(first + 64 * n + 32, second + 64 * n + 32),
        vec.load_two_i8x32(first + QH + 32 * n, second + QH + 32 * n),
    )


@inner
def unpack_two(first, second):
    """Return what ``wide_phases`` unpacks of two blocks; offsets are -32 scales."""
    (w0, w1, w2, w3) = half_of_two(first, second, 0)
    (w4, w5, w6, w7) = half_of_two(first, second, 1)
    scales = vec.load_two_i8x16(first + SCALES, second + SCALES)
    s = vec.widen_i8x32(vec.even_then_odd_of_two(scales))
    offsets = vec.sub(vec.splat_i16x32(0), vec.shift_lanes_left(vec.widen_i8x32(scales), 5))
    d = vec.fourth_of_two(vec.load_f16x4_of_two(first + D - 6, second + D - 6))
    return (w0, w1, w2, w3, w4, w5, w6, w7), scales_of_words(s), (offsets, d)


if TWO_ROWS:
    rows = kernels_in_pairs(wide_phases(unpack_two, fold_with_offsets_of_16, BLOCK_BYTES))
else:
    rows = row_kernels_k(dot_by_groups if HAS_ARM64 else dot, BLOCK_BYTES)
tiles = tiles_k(8, 16, offset_scaling)
embed, matvec, small_batch, matmul = type_kernels(
    __name__, 256, BLOCK_BYTES, dequantize, rows, unpack_row, tiles
)

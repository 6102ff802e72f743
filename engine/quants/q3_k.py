"""Q3_K: 256 weights of 3 bits in sixteen sub-blocks of 16, each with a 6-bit scale.

    hmask   32 bytes   upper bit of weight 32j+l in bit j of byte l; 4 is subtracted where it is 0
    qs      64 bytes   lower 2 bits; 32 bytes for each half of the block (128 weights): weights l,
                       l+32, l+64, l+96 in bits 0-1, 2-3, 4-5, 6-7
    scales  12 bytes   sixteen 6-bit scales, offset 32: lower 4 bits in bytes 0..7, upper 2 in 8..11
    d       f16        scale of the scales
                       32 + 64 + 12 + 2 = 110

A weight is ``d * (scale - 32) * (q - 4)``. Layout: ggml-common.h, block_q3_K.
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
from engine.machine.level import TWO_ROWS

BLOCK_BYTES = 110
QS = 32
SCALES = 96
D = 108
FOUR = 0x0F0F0F0F
TWO = 0x03030303
"""Masks of the lower bits of four bytes."""


@inner
def scales(block):
    """Return the sixteen scales of a block as stored: bytes from 0 to 63."""
    u0 = vec.load_u32(block + SCALES)
    u1 = vec.load_u32(block + SCALES + 4)
    u2 = vec.load_u32(block + SCALES + 8)
    return vec.four_u32(
        (u0 & FOUR) | ((u2 & TWO) << 4),
        (u1 & FOUR) | (((u2 >> 2) & TWO) << 4),
        ((u0 >> 4) & FOUR) | (((u2 >> 4) & TWO) << 4),
        ((u1 >> 4) & FOUR) | (((u2 >> 6) & TWO) << 4),
    )


# Bytes among the last sixteen of a block that hold the lower and upper bits of each lane's scale,
# even scales first, and factors that shift these bits into place; 128 picks nothing.
_ORDER = [*range(0, 16, 2), *range(1, 16, 2)]
low_bytes = vec.constant_i8x32([byte for k in _ORDER for byte in (128, 2 + k % 8)])
high_bytes = vec.constant_i8x32([byte for k in _ORDER for byte in (128, 10 + k % 4)])
low_places = vec.constant_i16x16([1 << (8 if k < 8 else 4) for k in _ORDER])
high_places = vec.constant_i16x16([1 << (12 - k // 4 * 2) for k in _ORDER])


@inner
def even_and_odd_scales(block):
    """Return the sixteen scales as int16, the even ones in the lower half."""
    tail = vec.broadcast_16_bytes(block + BLOCK_BYTES - 16)
    low = vec.mul_high(vec.as_i16x16(vec.lookup16(tail, low_bytes())), low_places())
    high = vec.mul_high(vec.as_i16x16(vec.lookup16(tail, high_bytes())), high_places())
    return vec.sub(
        vec.or_(vec.and_(low, vec.splat_i16x16(15)), vec.and_(high, vec.splat_i16x16(0x30))),
        vec.splat_i16x16(32),
    )


@inner
def half(block, n):
    """Return the weights of one half of a block as bytes from 0 to 7: four registers of 32."""
    qs = vec.load_i8x32(block + QS + 32 * n)
    mask = vec.shift_right(vec.load_i8x32(block), 4 * n)
    two = vec.splat_i8x32(3)
    four = vec.splat_i8x32(4)
    return (
        vec.or_(vec.and_(qs, two), vec.and_(vec.shift_left(mask, 2), four)),
        vec.or_(vec.and_(vec.shift_right(qs, 2), two), vec.and_(vec.shift_left(mask, 1), four)),
        vec.or_(vec.and_(vec.shift_right(qs, 4), two), vec.and_(mask, four)),
        vec.or_(vec.and_(vec.shift_right(qs, 6), two), vec.and_(vec.shift_right(mask, 1), four)),
    )


@inner
def dot(block, y, d_y, sums, acc, acc_min):
    """Add one block's products with 256 activations."""
    s = even_and_odd_scales(block)
    offset = vec.shift_lanes_left(vec.maddwd(vec.halves_in_turn(s), vec.load_i16x16(sums)), 2)
    products = sixteen_groups(half, block, y, s)
    total = vec.sub(products, offset)
    return vec.fma(
        vec.fourth_f32(vec.fmul(vec.load_f16x4(block + D - 6), vec.splat_f32x4(d_y))),
        vec.f32_of_i32x8(total),
        acc,
    ), acc_min


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile; the offset of 4 becomes minima of -4 scales."""
    store_half(half(block, 0), out)
    store_half(half(block, 1), out + 128)
    s = vec.sub(vec.widen_u8x16(scales(block)), vec.splat_i16x16(32))
    store_scales_of_16(s, out)
    vec.store_i16x16(out + ROW_MINIMA, vec.sub(vec.splat_i16x16(0), vec.shift_lanes_left(s, 2)))
    vec.store_f32(out + ROW_D, vec.load_f16(block + D))


@inner
def dequantize(block, out):
    """Write the 256 weights of a block as f32."""
    d = vec.load_f16(block + D)
    for g in range(16):
        low = vec.load_u8(block + SCALES + (g & 7)) >> (4 * (g >> 3))
        high = vec.load_u8(block + SCALES + 8 + (g & 3)) >> (2 * (g >> 2))
        scale = d * (((low & 15) | ((high & 3) << 4)) - 32)
        for k in range(16 * g, 16 * g + 16):
            lower_bits = (
                vec.load_u8(block + QS + 32 * (k >> 7) + (k & 31)) >> (2 * ((k >> 5) & 3))
            ) & 3
            upper_bit = (vec.load_u8(block + (k & 31)) >> (k >> 5)) & 1
            vec.store_f32(out + 4 * k, scale * (lower_bits + 4 * upper_bit - 4))


@inner
def half_of_two(qs, mask):
    """Compute ``half`` of two blocks, one in each half of four registers, given their lower and
    upper bits."""
    two = vec.splat_i8x64(3)
    four = vec.splat_i8x64(4)
    return (
        vec.or_(vec.and_(qs, two), vec.and_(vec.shift_left(mask, 2), four)),
        vec.or_(vec.and_(vec.shift_right(qs, 2), two), vec.and_(vec.shift_left(mask, 1), four)),
        vec.or_(vec.and_(vec.shift_right(qs, 4), two), vec.and_(mask, four)),
        vec.or_(vec.and_(vec.shift_right(qs, 6), two), vec.and_(vec.shift_right(mask, 1), four)),
    )


@inner
def unpack_two(first, second):
    """Return what ``wide_phases`` unpacks of two blocks; offsets are -4 scales."""
    mask = vec.load_two_i8x32(first, second)
    (w0, w1, w2, w3) = half_of_two(vec.load_two_i8x32(first + QS, second + QS), mask)
    last_qs = vec.load_two_i8x32(first + QS + 32, second + QS + 32)
    (w4, w5, w6, w7) = half_of_two(last_qs, vec.shift_right(mask, 4))
    s, t = even_and_odd_scales(first), even_and_odd_scales(second)
    in_order = vec.join_i16x16(vec.halves_in_turn(s), vec.halves_in_turn(t))
    offsets = vec.sub(vec.splat_i16x32(0), vec.shift_lanes_left(in_order, 2))
    d = vec.fourth_of_two(vec.load_f16x4_of_two(first + D - 6, second + D - 6))
    scales = scales_of_words(vec.join_i16x16(s, t))
    return (w0, w1, w2, w3, w4, w5, w6, w7), scales, (offsets, d)


if TWO_ROWS:
    rows = kernels_in_pairs(wide_phases(unpack_two, fold_with_offsets_of_16, BLOCK_BYTES))
else:
    rows = row_kernels_k(dot, BLOCK_BYTES)
tiles = tiles_k(16, 16, offset_scaling)
embed, matvec, small_batch, matmul = type_kernels(
    __name__, 256, BLOCK_BYTES, dequantize, rows, unpack_row, tiles
)

"""Q3_K: 256 weights of 3 bits in sixteen sub-blocks of 16, each with a 6-bit scale.

    hmask   32 bytes   upper bit of weight 32j+l in bit j of byte l; where it is 0, 4 is taken off
    qs      64 bytes   lower 2 bits; of each half of the block (128 weights) 32 bytes: weights l, l+32, l+64, l+96 in
                       bits 0-1, 2-3, 4-5, 6-7
    scales  12 bytes   sixteen 6-bit scales, offset 32: lower 4 bits in bytes 0..7, upper 2 in 8..11
    d       f16        scale of the scales
                       32 + 64 + 12 + 2 = 110

A weight is ``d * (scale - 32) * (q - 4)``. Layout: ggml-common.h, block_q3_K.
"""

from engine.jit import inner, kernel
from engine.kernels.embed import embed_rows
from engine.kernels.matmul import OFFSETS_OF_16, ROW_D, ROW_MINIMA, ROW_SCALES, finish_16, walk_k
from engine.kernels.matvec_k import few_k, four_groups, matvec_k
from engine.kernels.tiles import NARROW, matmul_tiles
from engine.simd import (
    add,
    and_,
    as_i16x16,
    broadcast_16_bytes,
    constant_i8x32,
    constant_i16x16,
    each_twice_i16x8,
    f32_of_i32x8,
    fma,
    fmul,
    four_u32,
    fourth_f32,
    half_lane0,
    half_lane1,
    half_lane2,
    half_lane3,
    half_lane4,
    half_lane5,
    half_lane6,
    half_lane7,
    halves_in_turn,
    high_half_i16,
    keep_order,
    load_f16,
    load_f16x4,
    load_i8x32,
    load_i16x16,
    load_u8,
    load_u32,
    lookup16,
    low_half_i16,
    maddwd,
    mul_high,
    or_,
    shift_lanes_left,
    shift_left,
    shift_right,
    splat_f32x4,
    splat_i8x32,
    splat_i16x16,
    store_f32,
    store_i8x32,
    store_i16x16,
    sub,
    widen_u8x16,
)

BLOCK_BYTES = 110
QS, SCALES, D = 32, 96, 108
FOUR, TWO = 0x0F0F0F0F, 0x03030303


@inner
def scales(block):
    """The sixteen scales of a block, as they are stored: bytes from 0 to 63."""
    u0, u1, u2 = load_u32(block + SCALES), load_u32(block + SCALES + 4), load_u32(block + SCALES + 8)
    return four_u32(
        (u0 & FOUR) | ((u2 & TWO) << 4),
        (u1 & FOUR) | (((u2 >> 2) & TWO) << 4),
        ((u0 >> 4) & FOUR) | (((u2 >> 4) & TWO) << 4),
        ((u1 >> 4) & FOUR) | (((u2 >> 6) & TWO) << 4),
    )


# Where lane by lane a scale's lower and upper bits lie in the last sixteen bytes of a block, the even scales first, and
# by what to multiply them to bring them into place; 128 picks nothing.
_ORDER = [*range(0, 16, 2), *range(1, 16, 2)]
low_bytes = constant_i8x32([at for k in _ORDER for at in (128, 2 + k % 8)])
high_bytes = constant_i8x32([at for k in _ORDER for at in (128, 10 + k % 4)])
low_places = constant_i16x16([1 << (8 if k < 8 else 4) for k in _ORDER])
high_places = constant_i16x16([1 << (12 - k // 4 * 2) for k in _ORDER])


@inner
def even_and_odd_scales(block):
    """The sixteen scales as int16, the even ones in the lower half."""
    tail = broadcast_16_bytes(block + BLOCK_BYTES - 16)
    low = mul_high(as_i16x16(lookup16(tail, low_bytes())), low_places())
    high = mul_high(as_i16x16(lookup16(tail, high_bytes())), high_places())
    return sub(or_(and_(low, splat_i16x16(15)), and_(high, splat_i16x16(0x30))), splat_i16x16(32))


@inner
def half(block, n):
    """Weights of one half of a block as bytes from 0 to 7: four registers of 32."""
    qs, mask = load_i8x32(block + QS + 32 * n), shift_right(load_i8x32(block), 4 * n)
    two, four = splat_i8x32(3), splat_i8x32(4)
    return (
        or_(and_(qs, two), and_(shift_left(mask, 2), four)),
        or_(and_(shift_right(qs, 2), two), and_(shift_left(mask, 1), four)),
        or_(and_(shift_right(qs, 4), two), and_(mask, four)),
        or_(and_(shift_right(qs, 6), two), and_(shift_right(mask, 1), four)),
    )


@inner
def dot(block, y, d_y, sums, acc, acc_min):
    """Add one block's products with 256 activations."""
    s = even_and_odd_scales(block)
    offset = shift_lanes_left(maddwd(halves_in_turn(s), load_i16x16(sums)), 2)
    low = four_groups(half(block, 0), y, half_lane0(s), half_lane1(s), half_lane2(s), half_lane3(s))
    keep_order()
    high = four_groups(half(block, 1), y + 128, half_lane4(s), half_lane5(s), half_lane6(s), half_lane7(s))
    total = sub(add(low, high), offset)
    return fma(fourth_f32(fmul(load_f16x4(block + D - 6), splat_f32x4(d_y))), f32_of_i32x8(total), acc), acc_min


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile; the offset of 4 becomes minima of -4 scales."""
    for n in range(2):
        w0, w1, w2, w3 = half(block, n)
        store_i8x32(out + 128 * n, w0)
        store_i8x32(out + 128 * n + 32, w1)
        store_i8x32(out + 128 * n + 64, w2)
        store_i8x32(out + 128 * n + 96, w3)
    s = sub(widen_u8x16(scales(block)), splat_i16x16(32))
    store_i16x16(out + ROW_SCALES, each_twice_i16x8(low_half_i16(s)))
    store_i16x16(out + ROW_SCALES + 32, each_twice_i16x8(high_half_i16(s)))
    store_i16x16(out + ROW_MINIMA, sub(splat_i16x16(0), shift_lanes_left(s, 2)))
    store_f32(out + ROW_D, load_f16(block + D))


walk = walk_k(16, 16, OFFSETS_OF_16)


@inner
def dequantize(block, out):
    """Write the 256 weights of a block as f32."""
    d = load_f16(block + D)
    for g in range(16):
        low = load_u8(block + SCALES + (g & 7)) >> (4 * (g >> 3))
        high = load_u8(block + SCALES + 8 + (g & 3)) >> (2 * (g >> 2))
        scale = d * (((low & 15) | ((high & 3) << 4)) - 32)
        for k in range(16 * g, 16 * g + 16):
            two = (load_u8(block + QS + 32 * (k >> 7) + (k & 31)) >> (2 * ((k >> 5) & 3))) & 3
            one = (load_u8(block + (k & 31)) >> (k >> 5)) & 1
            store_f32(out + 4 * k, scale * (two + 4 * one - 4))


@kernel
def embed(op, thread, n_threads):
    """Rows by token id."""
    embed_rows(dequantize, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matvec(op, thread, n_threads):
    """Rows times one column."""
    matvec_k(dot, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def few(op, thread, n_threads):
    """Rows times a few columns."""
    few_k(dot, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matmul(op, thread, n_threads):
    """Rows times the columns of a block."""
    matmul_tiles(unpack_row, finish_16, walk, NARROW, 256, BLOCK_BYTES, op, thread, n_threads)

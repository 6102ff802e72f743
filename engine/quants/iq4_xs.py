"""IQ4_XS: 256 weights of 4 bits in eight sub-blocks of 32; a weight is an index into a fixed table.

    d         f16        scale of the scales
    scales_h  u16        upper 2 bits of the eight 6-bit scales, from the lowest bits on
    scales_l  4 bytes    lower 4 bits: scales 2j and 2j+1 in the low and high nibble of byte j
    qs        128 bytes  16 bytes for each sub-block: weights 0..15 in the low nibbles, 16..31 in
                         the high ones
                         2 + 2 + 4 + 128 = 136

A weight is ``d * (scale - 32) * VALUES[q]``, with the table of IQ4_NL. Layout: ggml-common.h,
block_iq4_xs.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels import matmul as tiles_of_bytes
from engine.kernels import matmul_wide as tiles_of_words
from engine.kernels.matmul_wide import store_scaled, tiles_signed_k
from engine.kernels.matvec_32 import by_block
from engine.kernels.matvec_k import row_kernels_k
from engine.kernels.nibbles import load_nibbles, load_nibbles_of_two
from engine.kernels.type_kernels import type_kernels
from engine.machine.level import FOURS_OFFSET, HAS_ARM64, SUMS_FOURS
from engine.quants.iq4_nl import VALUES

BLOCK_BYTES = 136
SCALES_H = 2
SCALES_L = 4
QS = 8
FOUR = 0x0F0F0F0F
TWO = 0x03030303
"""Masks of the lower bits of four bytes."""

codebook = vec.constant_i8x32(VALUES * 2)


@inner
def scale_words(block):
    """Return the scales of a block as they are stored, a byte each: (0, 2, 4, 6) and (1, 3, 5, 7)
    as u32."""
    low = vec.load_u32(block + SCALES_L)
    high = vec.load_u16(block + SCALES_H)
    high = (high | (high << 8)) & 0x00FF00FF
    high = (high | (high << 4)) & FOUR
    return (low & FOUR) | ((high & TWO) << 4), ((low >> 4) & FOUR) | (((high >> 2) & TWO) << 4)


@inner
def spread(half):
    """Move two bytes to the even bytes of four."""
    return (half & 255) | ((half & 0xFF00) << 8)


@inner
def scales_in_order(block):
    """Return the eight scales as int16."""
    even, odd = scale_words(block)
    low = spread(even) | (spread(odd) << 8)
    high = spread(even >> 16) | (spread(odd >> 16) << 8)
    return vec.sub(vec.widen_8_bytes(low, high), vec.low_half_i16(vec.splat_i16x16(32)))


# Bytes of the block that hold the lower and upper bits of each lane's scale, and factors that shift
# these bits into place; 128 picks nothing.
low_bytes = vec.constant_i8x32([128, 4, 128, 5, 128, 6, 128, 7] * 4)
high_bytes = vec.constant_i8x32([128, 2, 128, 2, 128, 3, 128, 3] * 4)
low_places = vec.constant_i16x16([1 << 8] * 8 + [1 << 4] * 8)
high_places = vec.constant_i16x16([1 << 12, 1 << 8] * 4 + [1 << 10, 1 << 6] * 4)


@inner
def scales(block):
    """Return the eight scales as int16, four times: 0, 2, 4, 6 in the lower half, 1, 3, 5, 7 in the
    upper."""
    head = vec.broadcast_16_bytes(block)
    low = vec.mul_high(vec.as_i16x16(vec.lookup16(head, low_bytes())), low_places())
    high = vec.mul_high(vec.as_i16x16(vec.lookup16(head, high_bytes())), high_places())
    return vec.sub(
        vec.or_(vec.and_(low, vec.splat_i16x16(15)), vec.and_(high, vec.splat_i16x16(0x30))),
        vec.splat_i16x16(32),
    )


@inner
def pair(block, y, j, scale):
    """Return the integer contribution of sub-blocks 2j and 2j+1, one in each half of the
    registers."""
    qs = vec.load_i8x32(block + QS + 32 * j)
    low = vec.lookup16(codebook(), vec.and_(qs, vec.splat_i8x32(15)))
    high = vec.lookup16(codebook(), vec.high_nibbles(qs))
    address = y + 128 * j  # in buffers.PAIRED_256: signs go to the weights, magnitudes are stored
    return vec.add(
        vec.maddwd(
            scale,
            vec.maddubs(
                vec.load_i8x32(address + 64), vec.with_sign_of(low, vec.load_i8x32(address))
            ),
        ),
        vec.maddwd(
            scale,
            vec.maddubs(
                vec.load_i8x32(address + 96), vec.with_sign_of(high, vec.load_i8x32(address + 32))
            ),
        ),
    )


@inner
def dot(block, y, d_y, sums, acc, acc_min):
    """Add one block's products with 256 activations."""
    s = scales(block)
    total = vec.add(
        vec.add(pair(block, y, 0, vec.half_lane0(s)), pair(block, y, 1, vec.half_lane1(s))),
        vec.add(pair(block, y, 2, vec.half_lane2(s)), pair(block, y, 3, vec.half_lane3(s))),
    )
    d = vec.first_f32(vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(d_y)))
    return vec.fma(d, vec.f32_of_i32x8(total), acc), acc_min


@inner
def half_groups(block, y, n):
    """Return the sums of the four sub-blocks of one half."""
    l0, h0 = load_nibbles_of_two(block + QS + 64 * n, block + QS + 64 * n + 16)
    l1, h1 = load_nibbles_of_two(block + QS + 64 * n + 32, block + QS + 64 * n + 48)
    w0, w1 = by_block(vec.lookup16(codebook(), l0), vec.lookup16(codebook(), h0))
    w2, w3 = by_block(vec.lookup16(codebook(), l1), vec.lookup16(codebook(), h1))
    y0, y1 = by_block(vec.load_i8x32(y), vec.load_i8x32(y + 32))
    y2, y3 = by_block(vec.load_i8x32(y + 128), vec.load_i8x32(y + 160))
    return vec.sums_of_32_i8(w0, w1, w2, w3, y0, y1, y2, y3)


@inner
def dot_by_groups(block, y, d_y, sums, acc, acc_min):
    """Compute ``dot`` with a lane for each sub-block."""
    groups = vec.join_i32(half_groups(block, y, 0), half_groups(block, y + 256, 1))
    total = vec.mul(vec.i32_of_i16x8(scales_in_order(block)), groups)
    d = vec.first_f32(vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(d_y)))
    return vec.fma(d, vec.f32_of_i32x8(total), acc), acc_min


@inner
def weights(block, j):
    """Return weights 32 j to 32 j + 31 of a block as signed bytes."""
    return vec.lookup16(codebook(), load_nibbles(block + QS + 16 * j))


@inner
def unpack_row_words(block, out, n_live):
    """Write one row's part of a tile: int16 weights times the scale of their sub-block."""
    even, odd = scale_words(block)
    for j in range(vec.rolled(8)):
        w = weights(block, j)
        word = odd if j & 1 else even
        scale = ((word >> (8 * (j >> 1))) & 255) - 32
        store_scaled(out + 64 * j, w, scale, scale)
    vec.store_f32(out + tiles_of_words.ROW_D, vec.load_f16(block))


@inner
def unpack_row_bytes(block, out, n_live):
    """Write one row's part of a tile: int8 weights, 128 too large for VNNI.

    The offset becomes minima of -128 scales.
    """
    for j in range(vec.rolled(8)):
        vec.store_i8x32(out + 32 * j, vec.xor(weights(block, j), vec.splat_i8x32(FOURS_OFFSET)))
    s = scales_in_order(block)
    vec.store_i16x16(out + tiles_of_bytes.ROW_SCALES, vec.each_twice_i16x8(s))
    vec.store_i16x8(
        out + tiles_of_bytes.ROW_MINIMA,
        vec.mul(s, vec.low_half_i16(vec.splat_i16x16(FOURS_OFFSET))),
    )
    vec.store_f32(out + tiles_of_bytes.ROW_D, vec.load_f16(block))


@inner
def dequantize(block, out):
    """Write the 256 weights of a block as f32."""
    d = vec.load_f16(block)
    high = vec.load_u16(block + SCALES_H)
    for j in range(8):
        low = (vec.load_u8(block + SCALES_L + (j >> 1)) >> (4 * (j & 1))) & 15
        scale = d * ((low | (((high >> (2 * j)) & 3) << 4)) - 32)
        for k in range(32):
            q = (vec.load_u8(block + QS + 16 * j + (k & 15)) >> (4 * (k >> 4))) & 15
            vec.store_f32(out + 4 * (32 * j + k), scale * VALUES[q])


rows = row_kernels_k(dot_by_groups if HAS_ARM64 else dot, BLOCK_BYTES, y_bytes=512)
unpack_row = unpack_row_bytes if SUMS_FOURS else unpack_row_words
embed, matvec, small_batch, matmul = type_kernels(
    __name__, 256, BLOCK_BYTES, dequantize, rows, unpack_row, tiles_signed_k(32)
)

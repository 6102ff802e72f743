"""Scales and minima of Q4_K and Q5_K: eight of 6 bits each in twelve bytes after the block's d and dmin.

Decode reads them for two rows at once, one in each half of a register, and leaves them in a little memory, from where a
broadcast costs a load and no shuffle.
"""

from engine import simd as vec
from engine.jit import inner

SIX, FOUR, TWO = 0x3F3F3F3F, 0x0F0F0F0F, 0x03030303


@inner
def scale_words(block):
    """The eight scales and eight minima of a block, a byte each: (low scales, high, low minima, high) as u32."""
    u0, u1, u2 = vec.load_u32(block + 4), vec.load_u32(block + 8), vec.load_u32(block + 12)
    return (
        u0 & SIX,
        (u2 & FOUR) | (((u0 >> 6) & TWO) << 4),
        u1 & SIX,
        ((u2 >> 4) & FOUR) | (((u1 >> 6) & TWO) << 4),
    )


low_fields = vec.constant_i8x32(([0x3F] * 4 + [0x0F] * 4) * 4)
high_fields = vec.constant_i8x32(([0] * 4 + [0x30] * 4) * 4)


@inner
def scales_of_two(block, other):
    """Eight scales and eight minima of two blocks, a byte each, one block in each half."""
    header = vec.load_two_i8x16(block, other)
    low = vec.words_1323(header, header)
    low = vec.and_(vec.last_word_of_b(low, vec.shift_right(low, 4)), low_fields())
    return vec.or_(low, vec.and_(vec.shift_right(vec.words_1122(header, header), 2), high_fields()))


@inner
def scale_of(room, j):
    """Scale of sub-block j in all lanes; the second four are 32 bytes after the first, the other row's in between."""
    return vec.as_i16x16(vec.broadcast_4_bytes(room + 32 * (j >> 2) + 4 * (j & 3)))


@inner
def dots_of_two(total, block, other, y, d_y, sums, acc, other_acc, acc_min, room):
    """Add the products of two rows' blocks with 256 activations, each as the type's ``dot`` does.

    Args:
        total: (block, y, room) -> i32x8, the integer contribution of one block, with scales from ``scale_of``.
        acc_min: minima of the first row in the lower half, of the other in the upper half.
        room: address of 64 bytes of this thread.

    Returns:
        (acc, other_acc, acc_min).
    """
    fields, zero = scales_of_two(block, other), vec.splat_i8x32(0)
    s = vec.as_i16x16(vec.interleave_low_i8(fields, zero))
    vec.store_i16x16(room, vec.interleave_low_i16(s, s))
    vec.store_i16x16(room + 32, vec.interleave_high_i16(s, s))
    vec.written()
    d, e = vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(d_y)), vec.fmul(vec.load_f16x4(other), vec.splat_f32x4(d_y))
    minima = vec.maddwd(
        vec.as_i16x16(vec.interleave_high_i8(fields, zero)), vec.as_i16x16(vec.broadcast_16_bytes(sums + 32))
    )
    acc_min = vec.fma(vec.join_halves_f32(vec.second_f32(d), vec.second_f32(e)), vec.f32_of_i32x8(minima), acc_min)
    acc = vec.fma(vec.first_f32(d), vec.f32_of_i32x8(total(block, y, room)), acc)
    other_acc = vec.fma(vec.first_f32(e), vec.f32_of_i32x8(total(other, y, room + 16)), other_acc)
    return acc, other_acc, acc_min


@inner
def add_groups(block, groups, d_y, sums, acc, acc_min):
    """Add a block's sums of sub-blocks, a lane each, times their scales; and its minima."""
    s_low, s_high, m_low, m_high = scale_words(block)
    s, m = vec.i32_of_i16x8(vec.widen_8_bytes(s_low, s_high)), vec.i32_of_i16x8(vec.widen_8_bytes(m_low, m_high))
    d = vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(d_y))
    minima = vec.mul(m, vec.i32_of_i16x8(vec.load_i16x8(sums + 32)))
    acc_min = vec.fma(vec.second_f32(d), vec.f32_of_i32x8(minima), acc_min)
    return vec.fma(vec.first_f32(d), vec.f32_of_i32x8(vec.mul(s, groups)), acc), acc_min


@inner
def prepare_scales(block, room):
    """Scales of one block, each twice, and after 32 bytes its minima."""
    s_low, s_high, m_low, m_high = scale_words(block)
    vec.store_i16x16(room, vec.each_twice_i16x8(vec.widen_8_bytes(s_low, s_high)))
    vec.store_i16x8(room + 32, vec.widen_8_bytes(m_low, m_high))


@inner
def prepared_scale(room, j):
    """Scale of sub-block j in all lanes."""
    return vec.as_i16x16(vec.broadcast_4_bytes(room + 4 * j))


@inner
def fold_with_minima(block, room, total, d_y, sums, acc, acc_min):
    """Add a block's integers: the products times d, the minima times dmin."""
    d = vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(d_y))
    minima = vec.i32x8_of_i32x4(vec.maddwd_128(vec.load_i16x8(room + 32), vec.load_i16x8(sums + 32)))
    acc_min = vec.fma(vec.second_f32(d), vec.f32_of_i32x8(minima), acc_min)
    return vec.fma(vec.first_f32(d), vec.f32_of_i32x8(total), acc), acc_min

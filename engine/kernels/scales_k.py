"""Q4_K and Q5_K: what they share. Eight scales and eight minima of 6 bits each are in twelve bytes
after d and dmin, as ``q4_k.py`` says.

Decode reads them for two rows at once, one in each half of a register, and leaves them in a little
memory, from where a broadcast costs a load and no shuffle.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matmul import ROW_D, ROW_DMIN, ROW_MINIMA, ROW_SCALES, minima_scaling, tiles_k
from engine.kernels.matvec import leaving, row_of_blocks, rows_with_small_batch
from engine.kernels.matvec_k import (
    UnitPhases,
    difference,
    phases_k,
    row_kernels_k,
    row_of_units,
    rows_in_twos_k,
)
from engine.kernels.records import SUMS_K_BYTES, SUMS_OF_32
from engine.kernels.type_kernels import type_kernels
from engine.machine.level import HAS_ARM64

SIX = 0x3F3F3F3F
FOUR = 0x0F0F0F0F
TWO = 0x03030303
"""Masks of the lower bits of four bytes."""


@inner
def scale_words(block):
    """The eight scales and eight minima of a block, a byte each: (scales 0..3, 4..7, minima 0..3,
    4..7) as u32."""
    u0 = vec.load_u32(block + 4)
    u1 = vec.load_u32(block + 8)
    u2 = vec.load_u32(block + 12)
    return (
        u0 & SIX,
        (u2 & FOUR) | (((u0 >> 6) & TWO) << 4),
        u1 & SIX,
        ((u2 >> 4) & FOUR) | (((u1 >> 6) & TWO) << 4),
    )


# What ``scales_of_two`` takes of each byte: all six bits of the lower four, and of the upper four
# first four, then two.
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
    """Scale of sub-block j in all lanes; the second four are 32 bytes after the first, the other
    row's in between."""
    return vec.as_i16x16(vec.broadcast_4_bytes(room + 32 * (j >> 2) + 4 * (j & 3)))


@inner
def add_groups(block, groups, d_y, sums, acc, acc_min):
    """Add a block's sums of sub-blocks, a lane each, times their scales; and its minima."""
    s_low, s_high, m_low, m_high = scale_words(block)
    s = vec.i32_of_i16x8(vec.widen_8_bytes(s_low, s_high))
    m = vec.i32_of_i16x8(vec.widen_8_bytes(m_low, m_high))
    d = vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(d_y))
    minima = vec.mul(m, vec.i32_of_i16x8(vec.load_i16x8(sums + SUMS_OF_32)))
    acc_min = vec.fma(vec.second_f32(d), vec.f32_of_i32x8(minima), acc_min)
    return vec.fma(vec.first_f32(d), vec.f32_of_i32x8(vec.mul(s, groups)), acc), acc_min


@inner
def scaled_pair(even, odd, y, even_scale, odd_scale):
    """Products of two sub-blocks with their 64 activations, times their scales, as i32x8."""
    return vec.add(
        vec.maddwd_folded(even_scale, vec.maddubs(even, vec.load_i8x32(y))),
        vec.maddwd_folded(odd_scale, vec.maddubs(odd, vec.load_i8x32(y + 32))),
    )


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
def clear_shared(shared, column, state):
    """A phase: no integers, no products and no minima."""
    return vec.splat_i32x8(0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)


@inner
def start_shared(shared, column, state):
    """A phase: no integers of this block yet."""
    _, acc, acc_min = state
    return vec.splat_i32x8(0), acc, acc_min


@inner
def add_shared(shared, column, state):
    """A phase: 64 weights with their two scale registers, ``at`` bytes from a column's first
    activation."""
    ((even, odd, even_scale, odd_scale), at) = shared
    (_, q, _, _) = column
    (t, acc, acc_min) = state
    return vec.add(t, scaled_pair(even, odd, q + at, even_scale, odd_scale)), acc, acc_min


@inner
def fold_shared(shared, column, state):
    """A phase: a block's integers, the products times d, the minima times dmin."""
    (block, room, i) = shared
    (_, _, d_y, sums) = column
    (t, acc, acc_min) = state
    d = vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(vec.load_f32(d_y + 4 * i)))
    sums_y = vec.load_i16x8(sums + SUMS_K_BYTES * i + SUMS_OF_32)
    minima = vec.i32x8_of_i32x4(vec.maddwd_128(vec.load_i16x8(room + 32), sums_y))
    acc_min = vec.fma(vec.second_f32(d), vec.f32_of_i32x8(minima), acc_min)
    return t, vec.fma(vec.first_f32(d), vec.f32_of_i32x8(t), acc), acc_min


@inner
def difference_shared(state):
    """``difference`` of a state of these phases."""
    _, acc, acc_min = state
    return difference((acc, acc_min))


@inner
def nothing(block, room):
    """What is done before the first block."""


@inner
def prepare_here(block, room, i, n_blocks):
    """Prepare the scales of the block itself."""
    prepare_scales(block, room)
    return room


def sub_block_type(module, block_bytes, n_products, sums_of, pair_of, any_pair_of, weight):
    """Make the four kernels of a type: ``embed`` of ``dequantize``, ``matmul`` of ``unpack_row``,
    and on x86 ``matvec`` of ``dots``, two rows at once, and ``small_batch`` of ``unit``, two
    sub-blocks for all columns; on ARM64 both of ``dot_by_groups``.

    Args:
        n_products: as ``tiles_k`` takes it.
        sums_of: adds up the products of four sub-blocks, a lane for each (``simd.group_sums``).
        pair_of: (block, j) -> weights of sub-blocks 2j and 2j + 1 as two registers of bytes, j
            being a constant.
        any_pair_of: the same for any j.
        weight: (block, j, k) -> weight k of sub-block j as a number.
    """

    @inner
    def pair(block, y, j, even_scale, odd_scale):
        """Scaled products of sub-blocks 2j and 2j + 1."""
        even, odd = pair_of(block, j)
        return scaled_pair(even, odd, y + 64 * j, even_scale, odd_scale)

    @inner
    def dot(block, y, d_y, sums, acc, acc_min):
        """Add one block's products with 256 activations, and its minima times their sums."""
        s_low, s_high, m_low, m_high = scale_words(block)
        s = vec.widen_u8x16(vec.four_u32(s_low, s_high, s_low, s_high))
        m = vec.widen_8_bytes(m_low, m_high)
        d = vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(d_y))
        minima = vec.i32x8_of_i32x4(vec.maddwd_128(m, vec.load_i16x8(sums + SUMS_OF_32)))
        acc_min = vec.fma(vec.second_f32(d), vec.f32_of_i32x8(minima), acc_min)
        low = vec.add(
            pair(block, y, 0, vec.half_lane0(s), vec.half_lane1(s)),
            pair(block, y, 1, vec.half_lane2(s), vec.half_lane3(s)),
        )
        high = vec.add(
            pair(block, y, 2, vec.half_lane4(s), vec.half_lane5(s)),
            pair(block, y, 3, vec.half_lane6(s), vec.half_lane7(s)),
        )
        return vec.fma(vec.first_f32(d), vec.f32_of_i32x8(vec.add(low, high)), acc), acc_min

    @inner
    def half_groups(block, y, n):
        """Sums of the four sub-blocks of one half, a lane each."""
        w0, w1 = pair_of(block, 2 * n)
        w2, w3 = pair_of(block, 2 * n + 1)
        y0 = vec.load_i8x32(y)
        y1 = vec.load_i8x32(y + 32)
        y2 = vec.load_i8x32(y + 64)
        y3 = vec.load_i8x32(y + 96)
        return sums_of(w0, w1, w2, w3, y0, y1, y2, y3)

    @inner
    def dot_by_groups(block, y, d_y, sums, acc, acc_min):
        """``dot`` with a lane for each sub-block."""
        groups = vec.join_i32(half_groups(block, y, 0), half_groups(block, y + 128, 1))
        return add_groups(block, groups, d_y, sums, acc, acc_min)

    @inner
    def total(block, y, room):
        """Scaled products of a whole block, whose scales ``dots`` left in the room."""
        low = vec.add(
            pair(block, y, 0, scale_of(room, 0), scale_of(room, 1)),
            pair(block, y, 1, scale_of(room, 2), scale_of(room, 3)),
        )
        high = vec.add(
            pair(block, y, 2, scale_of(room, 4), scale_of(room, 5)),
            pair(block, y, 3, scale_of(room, 6), scale_of(room, 7)),
        )
        return vec.add(low, high)

    @inner
    def dots(block, other, y, d_y, sums, acc, other_acc, acc_min, room):
        """``dot`` of the blocks of two rows, whose scales and minima are unpacked together."""
        fields = scales_of_two(block, other)
        zero = vec.splat_i8x32(0)
        s = vec.as_i16x16(vec.interleave_low_i8(fields, zero))
        vec.store_i16x16(room, vec.interleave_low_i16(s, s))
        vec.store_i16x16(room + 32, vec.interleave_high_i16(s, s))
        vec.written()
        four = vec.splat_f32x4(d_y)
        d = vec.fmul(vec.load_f16x4(block), four)
        e = vec.fmul(vec.load_f16x4(other), four)
        sums_y = vec.as_i16x16(vec.broadcast_16_bytes(sums + SUMS_OF_32))
        minima = vec.maddwd(vec.as_i16x16(vec.interleave_high_i8(fields, zero)), sums_y)
        acc_min = vec.fma(
            vec.join_halves_f32(vec.second_f32(d), vec.second_f32(e)),
            vec.f32_of_i32x8(minima),
            acc_min,
        )
        acc = vec.fma(vec.first_f32(d), vec.f32_of_i32x8(total(block, y, room)), acc)
        other_acc = vec.fma(
            vec.first_f32(e), vec.f32_of_i32x8(total(other, y, room + 16)), other_acc
        )
        return acc, other_acc, acc_min

    @inner
    def unit(block, room, j):
        """Weights of sub-blocks 2j and 2j + 1, and their scales."""
        even, odd = any_pair_of(block, j)
        return even, odd, prepared_scale(room, 2 * j), prepared_scale(room, 2 * j + 1)

    @inner
    def unpack_row(block, out, n_live):
        """Write one row's part of a tile (``matmul.py``)."""
        for j in range(4):
            even, odd = pair_of(block, j)
            vec.store_i8x32(out + 64 * j, even)
            vec.store_i8x32(out + 64 * j + 32, odd)
        s_low, s_high, m_low, m_high = scale_words(block)
        vec.store_i16x16(out + ROW_SCALES, vec.each_twice_i16x8(vec.widen_8_bytes(s_low, s_high)))
        vec.store_i16x8(out + ROW_MINIMA, vec.widen_8_bytes(m_low, m_high))
        vec.store_f32(out + ROW_D, vec.load_f16(block))
        vec.store_f32(out + ROW_DMIN, -vec.load_f16(block + 2))

    @inner
    def dequantize(block, out):
        """Write the 256 weights of a block as f32."""
        s_low, s_high, m_low, m_high = scale_words(block)
        d = vec.load_f16(block)
        dmin = vec.load_f16(block + 2)
        for j in range(8):
            s, m = (s_low, m_low) if j < 4 else (s_high, m_high)
            scale = d * ((s >> (8 * (j & 3))) & 255)
            minimum = dmin * ((m >> (8 * (j & 3))) & 255)
            for k in range(32):
                vec.store_f32(out + 4 * (32 * j + k), scale * weight(block, j, k) - minimum)

    if HAS_ARM64:
        rows = row_kernels_k(dot_by_groups, block_bytes)
    else:
        one, two = (row_of_blocks(n, phases_k(dot, block_bytes)) for n in (1, 2))
        phases = UnitPhases(
            clear_shared, start_shared, add_shared, fold_shared, leaving(difference_shared)
        )
        four = row_of_units(4, phases, nothing, prepare_here, unit, 64, block_bytes)
        rows = rows_in_twos_k(dots, one, block_bytes), rows_with_small_batch(one, two, four)
    return type_kernels(
        module,
        256,
        block_bytes,
        dequantize,
        rows,
        unpack_row,
        tiles_k(n_products, 32, minima_scaling),
    )

"""Q4_K and Q5_K: scales, minima and the kernels that both types share.

Eight scales and eight minima of 6 bits each are in twelve bytes after d and dmin, see ``q4_k.py``.
Decode unpacks them for two rows at once, one in each half of a register, and stores them in a
little memory: a broadcast from there costs a load and no shuffle.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matmul import ROW_D, ROW_DMIN, ROW_MINIMA, ROW_SCALES, minima_scaling, tiles_k
from engine.kernels.matvec import last_phase, row_of_blocks, rows_with_small_batch, two_and_one
from engine.kernels.matvec_k import (
    UnitPhases,
    difference,
    phases_k,
    row_kernels_k,
    row_of_units,
    rows_in_twos_k,
)
from engine.kernels.records import SUMS_K_BYTES, SUMS_OF_32
from engine.kernels.row_pairs import kernels_in_pairs, small_batch_in_pairs
from engine.kernels.row_pairs_k import MINIMA, narrow_phases_of_32, wide_phases_of_32
from engine.kernels.type_kernels import type_kernels
from engine.machine.level import HAS_ARM64, HAS_AVX2, HAS_VNNI, TWO_ROWS

SIX = 0x3F3F3F3F
FOUR = 0x0F0F0F0F
TWO = 0x03030303
"""Masks of the lower bits of four bytes."""


@inner
def scale_words(block):
    """Return the scales and minima of a block, a byte each, in four u32.

    Returns:
        (scales 0 to 3, scales 4 to 7, minima 0 to 3, minima 4 to 7).
    """
    u0 = vec.load_u32(block + 4)
    u1 = vec.load_u32(block + 8)
    u2 = vec.load_u32(block + 12)
    return (
        u0 & SIX,
        (u2 & FOUR) | (((u0 >> 6) & TWO) << 4),
        u1 & SIX,
        ((u2 >> 4) & FOUR) | (((u1 >> 6) & TWO) << 4),
    )


# Bits that ``scales_of_two`` takes of each byte: all six of the lower four bytes; of the upper four
# first four bits, then two.
low_fields = vec.constant_i8x32(([0x3F] * 4 + [0x0F] * 4) * 4)
high_fields = vec.constant_i8x32(([0] * 4 + [0x30] * 4) * 4)


@inner
def scales_of_two(block, second):
    """Return the scales and minima of two blocks, a byte each, one block in each half."""
    header = vec.load_two_i8x16(block, second)
    low = vec.words_1323(header, header)
    low = vec.and_(vec.last_word_of_b(low, vec.shift_right(low, 4)), low_fields())
    return vec.or_(low, vec.and_(vec.shift_right(vec.words_1122(header, header), 2), high_fields()))


@inner
def scale_of(scratch, j):
    """Return the scale of sub-block j in all lanes.

    The second four scales are 32 bytes after the first, those of the other row in between.
    """
    return vec.as_i16x16(vec.broadcast_4_bytes(scratch + 32 * (j >> 2) + 4 * (j & 3)))


@inner
def store_scales_of_two(first, second, scratch):
    """Write the scales of two blocks for ``scale_of``, and their minima after them."""
    fields = scales_of_two(first, second)
    zero = vec.splat_i8x32(0)
    s = vec.as_i16x16(vec.interleave_low_i8(fields, zero))
    vec.store_i16x16(scratch, vec.interleave_low_i16(s, s))
    vec.store_i16x16(scratch + 32, vec.interleave_high_i16(s, s))
    vec.store_i16x16(scratch + MINIMA, vec.as_i16x16(vec.interleave_high_i8(fields, zero)))


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
    """Return the products of two sub-blocks with their 64 activations, times their scales, as
    i32x8."""
    return vec.add(
        vec.maddwd_folded(even_scale, vec.maddubs(even, vec.load_i8x32(y))),
        vec.maddwd_folded(odd_scale, vec.maddubs(odd, vec.load_i8x32(y + 32))),
    )


@inner
def prepare_scales(block, scratch):
    """Write the scales of one block, each twice, and its minima 32 bytes after them."""
    s_low, s_high, m_low, m_high = scale_words(block)
    vec.store_i16x16(scratch, vec.each_twice_i16x8(vec.widen_8_bytes(s_low, s_high)))
    vec.store_i16x8(scratch + 32, vec.widen_8_bytes(m_low, m_high))


@inner
def prepared_scale(scratch, j):
    """Return the scale of sub-block j in all lanes."""
    return vec.as_i16x16(vec.broadcast_4_bytes(scratch + 4 * j))


@inner
def clear_shared(shared, token, state):
    """Return a cleared state: no integers, no products and no minima."""
    return vec.splat_i32x8(0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)


@inner
def start_shared(shared, token, state):
    """Clear the integers before a block."""
    _, acc, acc_min = state
    return vec.splat_i32x8(0), acc, acc_min


@inner
def add_shared(shared, token, state):
    """Add 64 weights with their two scale registers; ``offset`` is that of their activations."""
    ((even, odd, even_scale, odd_scale), offset) = shared
    (_, q, _, _) = token
    (t, acc, acc_min) = state
    return vec.add(t, scaled_pair(even, odd, q + offset, even_scale, odd_scale)), acc, acc_min


@inner
def fold_shared(shared, token, state):
    """Add a block's integers to the products, times d, and its minima, times dmin."""
    (block, scratch, i) = shared
    (_, _, d_y, sums) = token
    (t, acc, acc_min) = state
    d = vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(vec.load_f32(d_y + 4 * i)))
    sums_y = vec.load_i16x8(sums + SUMS_K_BYTES * i + SUMS_OF_32)
    minima = vec.i32x8_of_i32x4(vec.maddwd_128(vec.load_i16x8(scratch + 32), sums_y))
    acc_min = vec.fma(vec.second_f32(d), vec.f32_of_i32x8(minima), acc_min)
    return t, vec.fma(vec.first_f32(d), vec.f32_of_i32x8(t), acc), acc_min


@inner
def difference_shared(state):
    """Return the sum of the products minus the minima."""
    _, acc, acc_min = state
    return difference((acc, acc_min))


@inner
def no_preparation(block, scratch):
    """Do nothing before the first block."""


@inner
def prepare_block(block, scratch, i, n_blocks):
    """Prepare the scales of the block itself."""
    prepare_scales(block, scratch)
    return scratch


def sub_block_type(
    module, block_bytes, n_products, sums_of, pair_of, any_pair_of, weights_of_two, weight
):
    """Make the four kernels of a type.

    ``embed`` uses ``dequantize`` and ``matmul`` ``unpack_row``. On x86 ``matvec`` computes ``dots``
    of two rows at once, and ``small_batch`` a ``unit`` of two sub-blocks for all tokens. On ARM64
    both use ``dot_by_groups``.

    Args:
        n_products: As in ``tiles_k``.
        sums_of: Operation of ``simd.group_sums``: sums of four sub-blocks, a lane each.
        pair_of: (block, j) -> weights of sub-blocks 2j and 2j + 1 as two registers of bytes; j
            is a constant.
        any_pair_of: ``pair_of`` for any j.
        weights_of_two: As in ``wide_phases_of_32``.
        weight: (block, j, k) -> weight k of sub-block j as a number.
    """

    @inner
    def pair(block, y, j, even_scale, odd_scale):
        """Return the scaled products of sub-blocks 2j and 2j + 1."""
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
    def half(block, n):
        """Return the weights of one half of a block: four registers of 32."""
        w0, w1 = pair_of(block, 2 * n)
        w2, w3 = pair_of(block, 2 * n + 1)
        return w0, w1, w2, w3

    @inner
    def half_groups(block, y, n):
        """Return the sums of the four sub-blocks of one half, a lane each."""
        w0, w1, w2, w3 = half(block, n)
        y0 = vec.load_i8x32(y)
        y1 = vec.load_i8x32(y + 32)
        y2 = vec.load_i8x32(y + 64)
        y3 = vec.load_i8x32(y + 96)
        return sums_of(w0, w1, w2, w3, y0, y1, y2, y3)

    @inner
    def dot_by_groups(block, y, d_y, sums, acc, acc_min):
        """Compute ``dot`` with a lane for each sub-block."""
        groups = vec.join_i32(half_groups(block, y, 0), half_groups(block, y + 128, 1))
        return add_groups(block, groups, d_y, sums, acc, acc_min)

    @inner
    def total_in_pairs(block, y, scratch):
        """Return the scaled products of a block; ``dots`` has stored its scales in ``scratch``."""
        low = vec.add(
            pair(block, y, 0, scale_of(scratch, 0), scale_of(scratch, 1)),
            pair(block, y, 1, scale_of(scratch, 2), scale_of(scratch, 3)),
        )
        high = vec.add(
            pair(block, y, 2, scale_of(scratch, 4), scale_of(scratch, 5)),
            pair(block, y, 3, scale_of(scratch, 6), scale_of(scratch, 7)),
        )
        return vec.add(low, high)

    @inner
    def add_pair(t, block, y, j, even_scale, odd_scale):
        """Add the scaled products of sub-blocks 2j and 2j + 1 to eight integers."""
        even, odd = pair_of(block, j)
        t = vec.add_twos(t, vec.maddubs(even, vec.load_i8x32(y + 64 * j)), even_scale)
        return vec.add_twos(t, vec.maddubs(odd, vec.load_i8x32(y + 64 * j + 32)), odd_scale)

    @inner
    def total_in_order(block, y, scratch):
        """Compute ``total`` if one instruction multiplies and adds."""
        t = vec.splat_i32x8(0)
        t = add_pair(t, block, y, 0, scale_of(scratch, 0), scale_of(scratch, 1))
        t = add_pair(t, block, y, 1, scale_of(scratch, 2), scale_of(scratch, 3))
        t = add_pair(t, block, y, 2, scale_of(scratch, 4), scale_of(scratch, 5))
        return add_pair(t, block, y, 3, scale_of(scratch, 6), scale_of(scratch, 7))

    total = total_in_order if HAS_VNNI else total_in_pairs

    @inner
    def dots(block, second, y, d_y, sums, acc, second_acc, acc_min, scratch):
        """Compute ``dot`` of the blocks of two rows, whose scales and minima are unpacked
        together."""
        fields = scales_of_two(block, second)
        zero = vec.splat_i8x32(0)
        s = vec.as_i16x16(vec.interleave_low_i8(fields, zero))
        vec.store_i16x16(scratch, vec.interleave_low_i16(s, s))
        vec.store_i16x16(scratch + 32, vec.interleave_high_i16(s, s))
        vec.store_barrier()
        four_tokens = vec.splat_f32x4(d_y)
        d = vec.fmul(vec.load_f16x4(block), four_tokens)
        e = vec.fmul(vec.load_f16x4(second), four_tokens)
        sums_y = vec.as_i16x16(vec.broadcast_16_bytes(sums + SUMS_OF_32))
        minima = vec.maddwd(vec.as_i16x16(vec.interleave_high_i8(fields, zero)), sums_y)
        acc_min = vec.fma(
            vec.join_halves_f32(vec.second_f32(d), vec.second_f32(e)),
            vec.f32_of_i32x8(minima),
            acc_min,
        )
        acc = vec.fma(vec.first_f32(d), vec.f32_of_i32x8(total(block, y, scratch)), acc)
        second_acc = vec.fma(
            vec.first_f32(e), vec.f32_of_i32x8(total(second, y, scratch + 16)), second_acc
        )
        return acc, second_acc, acc_min

    @inner
    def unit(block, scratch, j):
        """Return the weights of sub-blocks 2j and 2j + 1, and their scales."""
        even, odd = any_pair_of(block, j)
        return even, odd, prepared_scale(scratch, 2 * j), prepared_scale(scratch, 2 * j + 1)

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
    elif TWO_ROWS:
        rows = kernels_in_pairs(wide_phases_of_32(weights_of_two, scales_of_two, block_bytes))
    else:
        one_token, two_tokens = (row_of_blocks(n, phases_k(dot, block_bytes)) for n in (1, 2))
        pairs = narrow_phases_of_32(half, store_scales_of_two, scale_of, block_bytes)
        phases = UnitPhases(
            clear_shared, start_shared, add_shared, fold_shared, last_phase(difference_shared)
        )
        four_tokens = row_of_units(4, phases, no_preparation, prepare_block, unit, 64, block_bytes)
        rows = (
            rows_in_twos_k(dots, one_token, block_bytes),
            small_batch_in_pairs(pairs)
            if HAS_AVX2
            else rows_with_small_batch(
                one_token, two_tokens, two_and_one(one_token, two_tokens), four_tokens
            ),
        )
    return type_kernels(
        module,
        256,
        block_bytes,
        dequantize,
        rows,
        unpack_row,
        tiles_k(n_products, 32, minima_scaling),
    )

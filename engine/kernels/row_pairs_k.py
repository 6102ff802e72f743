"""Two rows of a K type at once: phases of ``row_pairs``.

The integers of a superblock are the same in any order, so products are multiplied by their scales
and added one after the other, with ``vpdpwssd`` where there is VNNI. Registers of 512 bits hold a
row in each half. In registers of 256 bits the second row follows the first, and both share what
unpacks scales and minima.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matvec import side_by_side
from engine.kernels.matvec_k import token_k
from engine.kernels.records import SUMS_K_BYTES, SUMS_OF_32
from engine.kernels.row_pairs import PairPhases

MINIMA = 64
"""Where the minima of both rows are in the scratch, after their scales."""


@inner
def clear_wide(shared, token, state):
    """Return a cleared state: integers of a chunk, products and minima of both rows."""
    return vec.splat_i32x16(0), vec.splat_f32x16(0.0), vec.splat_f32x8(0.0)


@inner
def add_wide(shared, token, state):
    """Add 64 weights of both rows, times their scales, to the integers of the chunk; ``offset`` is
    that of their activations."""
    (even, odd, even_scale, odd_scale, offset) = shared
    (_, q, _, _) = token
    (t, acc, acc_min) = state
    y = q + offset
    t = vec.add_twos(t, vec.maddubs_512(even, vec.broadcast_32_bytes(y)), even_scale)
    t = vec.add_twos(t, vec.maddubs_512(odd, vec.broadcast_32_bytes(y + 32)), odd_scale)
    return t, acc, acc_min


@inner
def fold_with_minima_of_32(shared, token, state):
    """Add the integers of a chunk, times d, to the products, and eight minima of each row, times
    dmin, to the minima."""
    ((m, d, dmin), i) = shared
    (_, _, d_y, sums) = token
    (t, acc, acc_min) = state
    sums_y = vec.as_i16x16(vec.broadcast_16_bytes(sums + SUMS_K_BYTES * i + SUMS_OF_32))
    minima = vec.f32_of_i32x8(vec.maddwd(m, sums_y))
    dmin_y = vec.fmul(dmin, vec.splat_f32x8(vec.load_f32(d_y + 4 * i)))
    acc_min = vec.fma(dmin_y, minima, acc_min)
    acc = vec.fma(vec.fmul(d, vec.broadcast_f32x16(d_y + 4 * i)), vec.f32_of_i32x16(t), acc)
    return vec.splat_i32x16(0), acc, acc_min


@inner
def differences_wide(state):
    """Return the sums of both rows' products minus the minima."""
    _, acc, acc_min = state
    first = vec.fsub(vec.low_half_f32x16(acc), vec.low_half_f32(acc_min))
    second = vec.fsub(vec.high_half_f32x16(acc), vec.high_half_f32(acc_min))
    return vec.sum_f32x8(first), vec.sum_f32x8(second)


@inner
def clear_wide_of_16(shared, token, state):
    """Compute ``clear_wide`` of a type with sixteen sub-blocks."""
    zero = vec.splat_f32x16(0.0)
    return vec.splat_i32x16(0), zero, zero


@inner
def fold_with_minima_of_16(shared, token, state):
    """Compute ``fold_with_minima_of_32`` with sixteen minima of each row."""
    ((m, d, dmin), i) = shared
    (_, _, d_y, sums) = token
    (t, acc, acc_min) = state
    scale = vec.broadcast_f32x16(d_y + 4 * i)
    sums_y = vec.as_i16x32(vec.broadcast_32_bytes(sums + SUMS_K_BYTES * i))
    minima = vec.f32_of_i32x16(vec.maddwd_512(m, sums_y))
    acc_min = vec.fma(vec.fmul(dmin, scale), minima, acc_min)
    acc = vec.fma(vec.fmul(d, scale), vec.f32_of_i32x16(t), acc)
    return vec.splat_i32x16(0), acc, acc_min


@inner
def fold_with_offsets_of_16(shared, token, state):
    """Add the integers of a chunk, and the sums of activations times sixteen offsets, times d, to
    the products."""
    ((offsets, d), i) = shared
    (_, _, d_y, sums) = token
    (t, acc, acc_min) = state
    sums_y = vec.as_i16x32(vec.broadcast_32_bytes(sums + SUMS_K_BYTES * i))
    t = vec.add_twos(t, offsets, sums_y)
    acc = vec.fma(vec.fmul(d, vec.broadcast_f32x16(d_y + 4 * i)), vec.f32_of_i32x16(t), acc)
    return vec.splat_i32x16(0), acc, acc_min


@inner
def differences_wide_of_16(state):
    """Compute ``differences_wide`` of a type with sixteen sub-blocks."""
    _, acc, acc_min = state
    difference = vec.fsub(acc, acc_min)
    return (
        vec.sum_f32x8(vec.low_half_f32x16(difference)),
        vec.sum_f32x8(vec.high_half_f32x16(difference)),
    )


@inner
def scales_of_bytes(fields):
    """Return eight scale registers of eight unsigned bytes at the start of each quarter."""
    return (
        vec.byte0_of_quarters(fields),
        vec.byte1_of_quarters(fields),
        vec.byte2_of_quarters(fields),
        vec.byte3_of_quarters(fields),
        vec.byte4_of_quarters(fields),
        vec.byte5_of_quarters(fields),
        vec.byte6_of_quarters(fields),
        vec.byte7_of_quarters(fields),
    )


@inner
def scales_of_words(s):
    """Return eight scale registers of sixteen int16 of each row, the even ones in the first of its
    quarters."""
    return (
        vec.lane0_of_quarters(s),
        vec.lane1_of_quarters(s),
        vec.lane2_of_quarters(s),
        vec.lane3_of_quarters(s),
        vec.lane4_of_quarters(s),
        vec.lane5_of_quarters(s),
        vec.lane6_of_quarters(s),
        vec.lane7_of_quarters(s),
    )


def wide_phases(unpack, fold, block_bytes, clear=clear_wide_of_16, totals=differences_wide_of_16):
    """Make the phases of a K type for registers of 512 bits.

    Args:
        unpack: (first, second) -> (weights, scales, what ``fold`` shares besides the number of the
            chunk), given the addresses of two blocks. There are eight registers of 32 weights of
            each row, in the order of the activations, and a scale register for each.
        fold: Phase after the weights of a chunk.
        clear, totals: As in ``PairPhases``.
    """

    def chunk(n):
        add = side_by_side(n, add_wide)
        fold_all = side_by_side(n, fold)

        @inner
        def add_chunk(first, second, i, scratch, tokens, state):
            weights, scales, terms = unpack(first, second)
            (w0, w1, w2, w3, w4, w5, w6, w7) = weights
            (s0, s1, s2, s3, s4, s5, s6, s7) = scales
            y = 256 * i
            state = add((w0, w1, s0, s1, y), tokens, state)
            state = add((w2, w3, s2, s3, y + 64), tokens, state)
            state = add((w4, w5, s4, s5, y + 128), tokens, state)
            state = add((w6, w7, s6, s7, y + 192), tokens, state)
            return fold_all((terms, i), tokens, state)

        return add_chunk

    return PairPhases(token_k, clear, chunk, totals, block_bytes, may_overlap=False)


def wide_phases_of_32(weights_of_two, scales_of_two, block_bytes):
    """Make the phases of a type with eight sub-blocks of 32, each with a scale and a minimum.

    Args:
        weights_of_two: (first, second) -> weights of the eight sub-blocks of two blocks, one in
            each half of eight registers.
        scales_of_two: (first, second) -> eight scales and eight minima of each block, a byte each,
            in a half of i8x32.
    """

    @inner
    def unpack(first, second):
        fields = scales_of_two(first, second)
        m = vec.as_i16x16(vec.interleave_high_i8(fields, vec.splat_i8x32(0)))
        four = vec.load_f16x4_of_two(first, second)
        terms = m, vec.first_of_two(four), vec.second_of_two_f32x8(four)
        scales = scales_of_bytes(vec.each_quarter_twice(fields))
        return weights_of_two(first, second), scales, terms

    return wide_phases(unpack, fold_with_minima_of_32, block_bytes, clear_wide, differences_wide)


@inner
def clear_narrow(shared, token, state):
    """Return a cleared state: integers of a row's chunk, products of this row and of the other
    one, and minima of both, one row in each half."""
    zero = vec.splat_f32x8(0.0)
    return vec.splat_i32x8(0), zero, zero, zero


@inner
def add_narrow(shared, token, state):
    """Add 128 weights of a row, 32 in each of four registers, times their scales, to the integers
    of the chunk; ``offset`` is that of their activations."""
    (weights, scales, offset) = shared
    (w0, w1, w2, w3) = weights
    (s0, s1, s2, s3) = scales
    (_, q, _, _) = token
    (t, acc, other_acc, acc_min) = state
    y = q + offset
    t = vec.add_twos(t, vec.maddubs(w0, vec.load_i8x32(y)), s0)
    t = vec.add_twos(t, vec.maddubs(w1, vec.load_i8x32(y + 32)), s1)
    t = vec.add_twos(t, vec.maddubs(w2, vec.load_i8x32(y + 64)), s2)
    t = vec.add_twos(t, vec.maddubs(w3, vec.load_i8x32(y + 96)), s3)
    return t, acc, other_acc, acc_min


@inner
def fold_narrow(shared, token, state):
    """Add the integers of a row's chunk, times d, to its products, and turn to the other row."""
    (d, i) = shared
    (_, _, d_y, _) = token
    (t, acc, other_acc, acc_min) = state
    d_of_both = vec.fmul(d, vec.splat_f32x8(vec.load_f32(d_y + 4 * i)))
    acc = vec.fma(d_of_both, vec.f32_of_i32x8(t), acc)
    return vec.splat_i32x8(0), other_acc, acc, acc_min


@inner
def add_minima_of_32(shared, token, state):
    """Add eight minima of each row, times dmin, to the minima."""
    (scratch, dmin, i) = shared
    (_, _, d_y, sums) = token
    (t, acc, other_acc, acc_min) = state
    sums_y = vec.as_i16x16(vec.broadcast_16_bytes(sums + SUMS_K_BYTES * i + SUMS_OF_32))
    minima = vec.f32_of_i32x8(vec.maddwd(vec.load_i16x16(scratch + MINIMA), sums_y))
    dmin_y = vec.fmul(dmin, vec.splat_f32x8(vec.load_f32(d_y + 4 * i)))
    return t, acc, other_acc, vec.fma(dmin_y, minima, acc_min)


@inner
def differences_narrow(state):
    """Return the sums of both rows' products minus the minima."""
    _, acc, other_acc, acc_min = state
    first = vec.fsub(acc, vec.low_half_f32(acc_min))
    second = vec.fsub(other_acc, vec.high_half_f32(acc_min))
    return vec.sum_f32x8(first), vec.sum_f32x8(second)


def narrow_phases_of_32(half, store_scales_of_two, scale_of, block_bytes):
    """Make the phases of a type with eight sub-blocks of 32, each with a scale and a minimum.

    Args:
        half: (block, n) -> weights of one half of a block: four registers of 32; n is a constant.
        store_scales_of_two: (first, second, scratch) -> None, writes the scales of two blocks for
            ``scale_of``, and their minima as int16 at ``MINIMA``.
        scale_of: (scratch, j) -> scale of sub-block j in all lanes; scratch + 16 for the second
            block.
    """

    def chunk(n):
        add = side_by_side(n, add_narrow)
        fold = side_by_side(n, fold_narrow)
        add_minima = side_by_side(n, add_minima_of_32)

        @inner
        def add_row(block, i, scratch, tokens, state):
            scales = (
                scale_of(scratch, 0),
                scale_of(scratch, 1),
                scale_of(scratch, 2),
                scale_of(scratch, 3),
            )
            state = add((half(block, 0), scales, 256 * i), tokens, state)
            vec.store_barrier()  # else LLVM would load all first, for which registers are too few
            scales = (
                scale_of(scratch, 4),
                scale_of(scratch, 5),
                scale_of(scratch, 6),
                scale_of(scratch, 7),
            )
            state = add((half(block, 1), scales, 256 * i + 128), tokens, state)
            return fold((vec.first_f32(vec.load_f16x4(block)), i), tokens, state)

        @inner
        def add_chunk(first, second, i, scratch, tokens, state):
            store_scales_of_two(first, second, scratch)
            vec.store_barrier()
            state = add_row(first, i, scratch, tokens, state)
            vec.store_barrier()
            state = add_row(second, i, scratch + 16, tokens, state)
            d, e = vec.load_f16x4(first), vec.load_f16x4(second)
            dmin = vec.join_halves_f32(vec.second_f32(d), vec.second_f32(e))
            return add_minima((scratch, dmin, i), tokens, state)

        return add_chunk

    return PairPhases(
        token_k, clear_narrow, chunk, differences_narrow, block_bytes, may_overlap=False
    )

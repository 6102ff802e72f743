"""Two rows of a K type at once, one in each half of registers of 512 bits.

A superblock's integers are the same in any order, so ``vpdpwssd`` multiplies by scales and adds in
one step.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matvec import side_by_side
from engine.kernels.matvec_k import token_k
from engine.kernels.records import SUMS_K_BYTES, SUMS_OF_32
from engine.kernels.row_pairs import PairPhases


@inner
def clear_wide(shared, token, state):
    """Return a cleared state: integers, products and minima."""
    return vec.splat_i32x16(0), vec.splat_f32x16(0.0), vec.splat_f32x8(0.0)


@inner
def start_wide(shared, token, state):
    """Clear the integers before a chunk."""
    _, acc, acc_min = state
    return vec.splat_i32x16(0), acc, acc_min


@inner
def add_wide(shared, token, state):
    """Add 64 weights of both rows, 32 and 32, with their two scale registers; ``offset`` is that of
    their activations."""
    ((even, odd), even_scale, odd_scale, offset) = shared
    (_, q, _, _) = token
    (t, acc, acc_min) = state
    y = q + offset
    t = vec.add_twos(t, vec.maddubs_512(even, vec.broadcast_32_bytes(y)), even_scale)
    t = vec.add_twos(t, vec.maddubs_512(odd, vec.broadcast_32_bytes(y + 32)), odd_scale)
    return t, acc, acc_min


@inner
def fold_wide(shared, token, state):
    """Add a chunk's integers to the products, times d, and eight minima of each row, times dmin."""
    (d, dmin, m, i) = shared
    (_, _, d_y, sums) = token
    (t, acc, acc_min) = state
    sums_y = vec.as_i16x16(vec.broadcast_16_bytes(sums + SUMS_K_BYTES * i + SUMS_OF_32))
    minima = vec.f32_of_i32x8(vec.maddwd(m, sums_y))
    dmin_y = vec.fmul(dmin, vec.splat_f32x8(vec.load_f32(d_y + 4 * i)))
    acc_min = vec.fma(dmin_y, minima, acc_min)
    acc = vec.fma(vec.fmul(d, vec.broadcast_f32x16(d_y + 4 * i)), vec.f32_of_i32x16(t), acc)
    return t, acc, acc_min


@inner
def differences_wide(state):
    """Return the sums of both rows' products minus the minima."""
    _, acc, acc_min = state
    first = vec.fsub(vec.low_half_f32x16(acc), vec.low_half_f32(acc_min))
    second = vec.fsub(vec.high_half_f32x16(acc), vec.high_half_f32(acc_min))
    return vec.sum_f32x8(first), vec.sum_f32x8(second)


def wide_phases_of_32(pair_of_two, scales_of_two, block_bytes):
    """Make the phases of a type with eight sub-blocks of 32, each with a scale and a minimum.

    Args:
        pair_of_two: (first, second, j) -> weights of sub-blocks 2j and 2j + 1 of two blocks, one in
            each half of two registers; j is a constant.
        scales_of_two: (first, second) -> eight scales and eight minima of each block, a byte each,
            in a half of i8x32.
    """

    def chunk(n):
        start, add, fold = (side_by_side(n, phase) for phase in (start_wide, add_wide, fold_wide))

        @inner
        def add_chunk(first, second, i, scratch, tokens, state):
            fields = scales_of_two(first, second)
            s = vec.each_quarter_twice(fields)
            state = start(0, tokens, state)
            offset = 256 * i
            pair = pair_of_two(first, second, 0)
            shared = pair, vec.byte0_of_quarters(s), vec.byte1_of_quarters(s), offset
            state = add(shared, tokens, state)
            pair = pair_of_two(first, second, 1)
            shared = pair, vec.byte2_of_quarters(s), vec.byte3_of_quarters(s), offset + 64
            state = add(shared, tokens, state)
            pair = pair_of_two(first, second, 2)
            shared = pair, vec.byte4_of_quarters(s), vec.byte5_of_quarters(s), offset + 128
            state = add(shared, tokens, state)
            pair = pair_of_two(first, second, 3)
            shared = pair, vec.byte6_of_quarters(s), vec.byte7_of_quarters(s), offset + 192
            state = add(shared, tokens, state)
            m = vec.as_i16x16(vec.interleave_high_i8(fields, vec.splat_i8x32(0)))
            four = vec.load_f16x4_of_two(first, second)
            d, dmin = vec.first_of_two(four), vec.second_of_two_f32x8(four)
            return fold((d, dmin, m, i), tokens, state)

        return add_chunk

    return PairPhases(token_k, clear_wide, chunk, differences_wide, block_bytes, may_overlap=False)

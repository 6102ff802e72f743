"""IQ1_S: 256 weights of three values in 32 groups of eight; a group is an entry of a grid of 2048,
and a shift.

    d   f16       scale of the scales
    qs  32 bytes  lower 8 bits of the indices
    qh  16 bytes  an u16 for each sub-block of 32: the upper 3 bits of its four indices, a 3-bit
                  scale, and in the last bit the sign of its shift
                  2 + 32 + 16 = 50

A weight is ``d * (2 * scale + 1) * (entry + shift)``; the shift is 1/8 or -1/8. Layout:
ggml-common.h, block_iq1_s.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.grid_tables import GRIDS
from engine.kernels.grids import (
    EIGHTS,
    RAISED,
    SCALES,
    SIGNS,
    grid_type,
    half_times,
    one_scale,
    raised_of,
)

QS = 2
QH = 34

grid = vec.table(GRIDS["IQ1_S"].table)
upper_bit_places = vec.constant_i16x16([1 << 11, 1 << 8, 1 << 5, 1 << 2] * 4)


@inner
def store_offsets(block, scratch, k):
    """Write the offsets of entries 16 k to 16 k + 15, and return by how much they are raised.

    That is 2 or 0 for a shift up or down.
    """
    words = vec.as_i16x16(vec.word_each_4(vec.broadcast_8_bytes(block + QH + 8 * k)))
    low = vec.shift_left(vec.widen_u8x16(vec.load_i8x16(block + QS + 16 * k)), 3)
    vec.store_i16x16(
        scratch + EIGHTS + 32 * k,
        vec.or_(low, vec.and_(vec.mul(words, upper_bit_places()), vec.splat_i16x16(7 << 11))),
    )
    return vec.sub(vec.splat_i16x16(2), vec.shift_left(vec.shift_right(words, 15), 1))


@inner
def prepare(block, scratch):
    """Fill the scratch."""
    vec.store_i8x32(
        scratch + SIGNS,
        vec.low_bytes_of(store_offsets(block, scratch, 0), store_offsets(block, scratch, 1)),
    )
    words = vec.each_twice_i16x8(vec.load_i16x8(block + QH))
    vec.store_i16x16(
        scratch + SCALES,
        vec.or_(vec.and_(vec.shift_right(words, 11), vec.splat_i16x16(14)), vec.splat_i16x16(1)),
    )


@inner
def weights(block, scratch, j):
    """Return weights 32 j to 32 j + 31, ``RAISED_BY`` too large."""
    w = vec.add(vec.entries_by_offset(grid(), scratch + EIGHTS + 8 * j), raised_of(scratch, j))
    return w, w


embed, matvec, small_batch, matmul = grid_type(
    __name__, 50, RAISED, one_scale, prepare, weights, half_times(0.125)
)

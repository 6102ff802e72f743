"""IQ1_M: 256 weights of three values in 32 groups of eight; a group is an entry of a grid of 2048,
and a shift.

    qs      32 bytes  lower 8 bits of the indices
    qh      16 bytes  a nibble for each group: upper 3 bits of its index, and sign of its shift
    scales  8 bytes   four u16: four 3-bit scales for 16 weights each; the upper nibbles of the four
                      are an f16, the scale of the scales
                      32 + 16 + 8 = 56

A weight is ``d * (2 * scale + 1) * (entry + shift)``; the shift is 1/8 or -1/8. Layout:
ggml-common.h, block_iq1_m.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels.grid_tables import GRIDS
from engine.kernels.grids import EIGHTS, RAISED, SCALES, SIGNS, grid_type, raised_of, two_scales

QH = 32
SCALE_WORDS = 48
FACTOR = np.float32(0.125)

grid = vec.table(GRIDS["IQ1_S"].table)
upper_bit_places = vec.constant_i16x16([1 << 11, 1 << 7] * 8)
scale_places = vec.constant_i16x16([1 << 13, 1 << 10, 1 << 7, 1 << 4] * 4)


@inner
def store_offsets(block, scratch, k):
    """Write the offsets of entries 16 k to 16 k + 15."""
    high = vec.mul(
        vec.as_i16x16(vec.byte_each_4(vec.broadcast_8_bytes(block + QH + 8 * k))),
        upper_bit_places(),
    )
    low = vec.shift_left(vec.widen_u8x16(vec.load_i8x16(block + 16 * k)), 3)
    vec.store_i16x16(
        scratch + EIGHTS + 32 * k, vec.or_(low, vec.and_(high, vec.splat_i16x16(7 << 11)))
    )


@inner
def prepare(block, scratch):
    """Fill the scratch; groups are raised by 2 or 0 for a shift up or down."""
    store_offsets(block, scratch, 0)
    store_offsets(block, scratch, 1)
    nibbles = vec.widen_u8x16(vec.load_i8x16(block + QH))
    down = vec.and_(vec.or_(nibbles, vec.shift_left(nibbles, 4)), vec.splat_i16x16(0x0808))
    vec.store_i16x16(scratch + SIGNS, vec.xor(vec.shift_right(down, 2), vec.splat_i16x16(0x0202)))
    words = vec.mul(
        vec.as_i16x16(vec.word_each_4(vec.broadcast_8_bytes(block + SCALE_WORDS))), scale_places()
    )
    vec.store_i16x16(
        scratch + SCALES,
        vec.or_(vec.and_(vec.shift_right(words, 12), vec.splat_i16x16(14)), vec.splat_i16x16(1)),
    )


@inner
def weights(block, scratch, j):
    """Return weights 32 j to 32 j + 31, ``RAISED_BY`` too large."""
    w = vec.add(vec.entries_by_offset(grid(), scratch + EIGHTS + 8 * j), raised_of(scratch, j))
    return w, w


@inner
def d_of(block, d_y):
    """Return the scale of the block times ``d_y``."""
    address = block + SCALE_WORDS
    low = (vec.load_u16(address) >> 12) | ((vec.load_u16(address + 2) >> 8) & 0xF0)
    return vec.splat_f32x8(
        vec.f32_of_half_bits(
            low | ((vec.load_u16(address + 4) >> 4) & 0xF00) | (vec.load_u16(address + 6) & 0xF000)
        )
        * d_y
        * FACTOR
    )


embed, matvec, small_batch, matmul = grid_type(
    __name__, 56, RAISED, two_scales, prepare, weights, d_of
)

"""IQ3_S: 256 weights of three bits, in 64 groups of four that are entries of a grid of 512.

    d       f16       scale of the scales
    qs      64 bytes  lower 8 bits of the indices
    qh      8 bytes   of each sub-block of 32 the ninth bits of its eight indices
    signs   32 bytes  of eight weights each
    scales  4 bytes   of two sub-blocks each, the first in the low nibble
                      2 + 64 + 8 + 32 + 4 = 110

A weight is ``d * (2 * scale + 1) * entry * sign``. Layout: ggml-common.h, block_iq3_s.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.grid_tables import GRIDS
from engine.kernels.grids import (
    FOURS,
    SCALES,
    SIGNED,
    SIGNS,
    grid_type,
    half_times,
    one_scale,
    signs_of,
)

QS = 2
QH = 66
SIGN_BYTES = 74
SCALE_BYTES = 106

grid = vec.table(GRIDS["IQ3_S"].table)
ninth_bit_places = vec.constant_i16x16([1 << (11 - k) for k in range(8)] * 2)
nibble_places = vec.constant_i16x16(([1 << 9] * 2 + [1 << 5] * 2) * 4)


@inner
def store_offsets(block, room, k):
    """Of the k-th sixteen entries."""
    high = vec.as_i16x16(vec.byte_each_16(vec.broadcast_4_bytes(block + QH + 2 * k)))
    high = vec.and_(vec.mul(high, ninth_bit_places()), vec.splat_i16x16(1 << 11))
    low = vec.shift_left(vec.widen_u8x16(vec.load_i8x16(block + QS + 16 * k)), 3)
    vec.store_i16x16(room + FOURS + 32 * k, vec.or_(low, high))


@inner
def prepare(block, room):
    """Fill the room."""
    store_offsets(block, room, 0)
    store_offsets(block, room, 1)
    store_offsets(block, room, 2)
    store_offsets(block, room, 3)
    vec.store_i8x32(room + SIGNS, vec.load_i8x32(block + SIGN_BYTES))
    twice = vec.mul_high(
        vec.as_i16x16(vec.byte_each_8(vec.broadcast_4_bytes(block + SCALE_BYTES))), nibble_places()
    )
    vec.store_i16x16(
        room + SCALES, vec.or_(vec.and_(twice, vec.splat_i16x16(30)), vec.splat_i16x16(1))
    )


@inner
def weights(block, room, j):
    """The j-th 32 weights."""
    return vec.fours_by_offset(grid(), room + FOURS + 16 * j, 512 * 8), signs_of(room, j)


embed, matvec, small_batch, matmul = grid_type(
    __name__, 110, SIGNED, one_scale, prepare, weights, half_times(1.0)
)

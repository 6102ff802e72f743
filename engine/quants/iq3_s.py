"""IQ3_S: 256 weights of three bits in 64 groups of four; a group is an entry of a grid of 512.

    d       f16       scale of the scales
    qs      64 bytes  lower 8 bits of the indices
    qh      8 bytes   ninth bits of eight indices for each sub-block of 32
    signs   32 bytes  a byte for eight weights
    scales  4 bytes   a nibble for each sub-block, the low nibble first
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
def store_offsets(block, scratch, k):
    """Write the offsets of entries 16 k to 16 k + 15."""
    high = vec.as_i16x16(vec.byte_each_16(vec.broadcast_4_bytes(block + QH + 2 * k)))
    high = vec.and_(vec.mul(high, ninth_bit_places()), vec.splat_i16x16(1 << 11))
    low = vec.shift_left(vec.widen_u8x16(vec.load_i8x16(block + QS + 16 * k)), 3)
    vec.store_i16x16(scratch + FOURS + 32 * k, vec.or_(low, high))


@inner
def prepare(block, scratch):
    """Fill the scratch."""
    store_offsets(block, scratch, 0)
    store_offsets(block, scratch, 1)
    store_offsets(block, scratch, 2)
    store_offsets(block, scratch, 3)
    vec.store_i8x32(scratch + SIGNS, vec.load_i8x32(block + SIGN_BYTES))
    twice = vec.mul_high(
        vec.as_i16x16(vec.byte_each_8(vec.broadcast_4_bytes(block + SCALE_BYTES))), nibble_places()
    )
    vec.store_i16x16(
        scratch + SCALES, vec.or_(vec.and_(twice, vec.splat_i16x16(30)), vec.splat_i16x16(1))
    )


@inner
def weights(block, scratch, j):
    """Return weights 32 j to 32 j + 31 and their signs."""
    return vec.fours_by_offset(grid(), scratch + FOURS + 16 * j, 512 * 8), signs_of(scratch, j)


embed, matvec, small_batch, matmul = grid_type(
    __name__, 110, SIGNED, one_scale, prepare, weights, half_times(1.0)
)

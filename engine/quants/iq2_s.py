"""IQ2_S: 256 weights of two bits in 32 groups of eight; a group is an entry of a grid of 1024.

    d       f16       scale of the scales
    qs      32 bytes  lower 8 bits of the indices
    signs   32 bytes  a byte for eight weights
    qh      8 bytes   upper 2 bits of four indices for each sub-block of 32
    scales  8 bytes   a nibble for each group of 16 weights, the low nibble first
                      2 + 32 + 32 + 8 + 8 = 82

A weight is ``d * (scale + 0.5) / 4 * entry * sign``. Layout: ggml-common.h, block_iq2_s.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.grid_tables import GRIDS
from engine.kernels.grids import (
    EIGHTS,
    SIGNED,
    SIGNS,
    grid_type,
    half_times,
    signs_of,
    store_nibble_scales,
    two_scales,
)

QS = 2
SIGN_BYTES = 34
QH = 66
SCALE_BYTES = 74

grid = vec.table(GRIDS["IQ2_S"].table)
upper_bit_places = vec.constant_i16x16([1 << 11, 1 << 9, 1 << 7, 1 << 5] * 4)


@inner
def store_offsets(block, scratch, k):
    """Write the offsets of entries 16 k to 16 k + 15."""
    high = vec.mul(
        vec.as_i16x16(vec.byte_each_8(vec.broadcast_4_bytes(block + QH + 4 * k))),
        upper_bit_places(),
    )
    low = vec.shift_left(vec.widen_u8x16(vec.load_i8x16(block + QS + 16 * k)), 3)
    vec.store_i16x16(
        scratch + EIGHTS + 32 * k, vec.or_(low, vec.and_(high, vec.splat_i16x16(3 << 11)))
    )


@inner
def prepare(block, scratch):
    """Fill the scratch."""
    store_offsets(block, scratch, 0)
    store_offsets(block, scratch, 1)
    vec.store_i8x32(scratch + SIGNS, vec.load_i8x32(block + SIGN_BYTES))
    store_nibble_scales(block + SCALE_BYTES, scratch)


@inner
def weights(block, scratch, j):
    """Return weights 32 j to 32 j + 31 and their signs."""
    return vec.entries_by_offset(grid(), scratch + EIGHTS + 8 * j), signs_of(scratch, j)


embed, matvec, small_batch, matmul = grid_type(
    __name__, 82, SIGNED, two_scales, prepare, weights, half_times(0.125)
)

"""IQ2_XS: 256 weights of two bits, in 32 groups of eight that are entries of a grid of 512.

    d       f16       scale of the scales
    qs      64 bytes  of each group an u16: its index in the lower 9 bits, seven of its signs in the others
    scales  8 bytes   of two groups of 16 weights each, the first in the low nibble
                      2 + 64 + 8 = 74

A weight is ``d * (scale + 0.5) / 4 * entry * sign``. Layout: ggml-common.h, block_iq2_xs.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.grid_tables import GRIDS
from engine.kernels.grids import (
    SIGNED,
    SIGNS,
    even_signs,
    grid_type,
    half_times,
    signs_of,
    store_nibble_scales,
    two_scales,
)

QS = 2
SCALE_BYTES = 66

grid = vec.table(GRIDS["IQ2_XS"].table)


@inner
def prepare(block, room):
    """Fill the room."""
    low = vec.load_i16x16(block + QS)
    high = vec.load_i16x16(block + QS + 32)
    vec.store_i8x32(
        room + SIGNS,
        even_signs(vec.low_bytes_of(vec.shift_right(low, 9), vec.shift_right(high, 9))),
    )
    store_nibble_scales(block + SCALE_BYTES, room)


@inner
def weights(block, room, j):
    """The j-th 32 weights."""
    return vec.entries_by_nine_bits(grid(), block + QS + 8 * j), signs_of(room, j)


embed, matvec, small_batch, matmul = grid_type(
    __name__, 74, SIGNED, two_scales, prepare, weights, half_times(0.125)
)

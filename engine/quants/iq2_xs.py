"""IQ2_XS: 256 weights of two bits in 32 groups of eight; a group is an entry of a grid of 512.

    d       f16       scale of the scales
    qs      64 bytes  an u16 for each group: its index in the lower 9 bits, seven of its signs above
    scales  8 bytes   a nibble for each group of 16 weights, the low nibble first
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
def prepare(block, scratch):
    """Fill the scratch."""
    low = vec.load_i16x16(block + QS)
    high = vec.load_i16x16(block + QS + 32)
    vec.store_i8x32(
        scratch + SIGNS,
        even_signs(vec.low_bytes_of(vec.shift_right(low, 9), vec.shift_right(high, 9))),
    )
    store_nibble_scales(block + SCALE_BYTES, scratch)


@inner
def weights(block, scratch, j):
    """Return weights 32 j to 32 j + 31 and their signs."""
    return vec.entries_by_nine_bits(grid(), block + QS + 8 * j), signs_of(scratch, j)


embed, matvec, small_batch, matmul = grid_type(
    __name__, 74, SIGNED, two_scales, prepare, weights, half_times(0.125)
)

"""IQ2_XXS: 256 weights of two bits in 32 groups of eight; a group is an entry of a grid of 256.

    d   f16       scale of the scales
    qs  64 bytes  for each sub-block of 32: four indices, and an u32 with the signs of eight weights
                  in seven bits four times, and the scale in the upper four bits
                  2 + 64 = 66

A weight is ``d * (scale + 0.5) / 4 * entry * sign``. Layout: ggml-common.h, block_iq2_xxs.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.grid_tables import GRIDS
from engine.kernels.grids import (
    SIGNED,
    grid_type,
    half_times,
    one_scale,
    signs_of,
    store_scales_of_words,
    store_signs_of_words,
)

QS = 2

grid = vec.table(GRIDS["IQ2_XXS"].table)


@inner
def prepare(block, scratch):
    """Fill the scratch."""
    words = vec.odd_words(vec.load_i32x8(block + QS), vec.load_i32x8(block + QS + 32))
    store_signs_of_words(words, scratch)
    store_scales_of_words(words, scratch)


@inner
def weights(block, scratch, j):
    """Return weights 32 j to 32 j + 31 and their signs."""
    return vec.entries_by_byte(grid(), block + QS + 8 * j), signs_of(scratch, j)


embed, matvec, small_batch, matmul = grid_type(
    __name__, 66, SIGNED, one_scale, prepare, weights, half_times(0.125)
)

"""IQ3_XXS: 256 weights of three bits in 64 groups of four; a group is an entry of a grid of 256.

    d      f16       scale of the scales
    qs     64 bytes  indices
    signs  32 bytes  an u32 for each sub-block of 32: the signs of eight weights in seven bits four
                     times, and the scale in the upper four bits
                     2 + 64 + 32 = 98

A weight is ``d * (scale + 0.5) / 2 * entry * sign``. Layout: ggml-common.h, block_iq3_xxs.
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
WORDS = 66

grid = vec.table(GRIDS["IQ3_XXS"].table)


@inner
def prepare(block, scratch):
    """Fill the scratch."""
    words = vec.load_i32x8(block + WORDS)
    store_signs_of_words(words, scratch)
    store_scales_of_words(words, scratch)


@inner
def weights(block, scratch, j):
    """Return weights 32 j to 32 j + 31 and their signs."""
    return vec.fours_by_byte(grid(), block + QS + 8 * j, 256 * 8), signs_of(scratch, j)


embed, matvec, small_batch, matmul = grid_type(
    __name__, 98, SIGNED, one_scale, prepare, weights, half_times(0.25)
)

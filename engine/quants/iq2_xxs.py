"""IQ2_XXS: 256 weights of two bits, in 32 groups of eight that are entries of a grid of 256.

    d   f16       scale of the scales
    qs  64 bytes  of each sub-block of 32 four indices, and an u32: four times the signs of eight weights in seven bits,
                  and in the upper four bits its scale
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
def prepare(block, room):
    """Fill the room."""
    words = vec.odd_words(vec.load_i32x8(block + QS), vec.load_i32x8(block + QS + 32))
    store_signs_of_words(words, room)
    store_scales_of_words(words, room)


@inner
def weights(block, room, j):
    """The j-th 32 weights."""
    return vec.entries_by_byte(grid(), block + QS + 8 * j), signs_of(room, j)


embed, matvec, small_batch, matmul = grid_type(
    __name__, 66, SIGNED, one_scale, prepare, weights, half_times(0.125)
)

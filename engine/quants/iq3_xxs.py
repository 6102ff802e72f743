"""IQ3_XXS: 256 weights of three bits, in 64 groups of four that are entries of a grid of 256.

    d      f16       scale of the scales
    qs     64 bytes  indices
    signs  32 bytes  of each sub-block of 32 an u32: four times the signs of eight weights in seven bits, and in the
                     upper four bits its scale
                     2 + 64 + 32 = 98

A weight is ``d * (scale + 0.5) / 2 * entry * sign``. Layout: ggml-common.h, block_iq3_xxs.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.embed import embed_rows
from engine.kernels.grid_tables import GRIDS
from engine.kernels.grids import (
    dequantize_grid,
    few_grid,
    matvec_grid,
    one_scale,
    signs_of,
    start_at_zero,
    store_scales_of_words,
    store_signs_of_words,
    times_signed,
    turned,
    unpack_grid,
    walk_grid,
)
from engine.kernels.matmul import finish_16
from engine.kernels.matmul_signed import ROOM
from engine.kernels.tiles import matmul_tiles

BLOCK_BYTES = 98
QS, WORDS = 2, 66
FACTOR = np.float32(0.25)

grid = vec.table(GRIDS["IQ3_XXS"].table)


@inner
def prepare(block, room):
    """Fill the room."""
    words = vec.load_i32x8(block + WORDS)
    store_signs_of_words(words, room)
    store_scales_of_words(words, room)


@inner
def weights(block, room, j):
    """The j-th 32 weights."""
    return vec.fours_by_byte(grid(), block + QS + 8 * j, 256 * 8), signs_of(room, j)


@inner
def d_of(block, d_y):
    """Scale of the block times ``d_y``."""
    return vec.first_f32(vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(d_y * FACTOR)))


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile."""
    unpack_grid(prepare, weights, d_of, turned, block, out)


@inner
def dequantize(block, out):
    """Write the 256 weights of a block as f32."""
    dequantize_grid(prepare, weights, d_of, turned, block, out)


@kernel
def embed(op, thread, n_threads):
    """Rows by token id."""
    embed_rows(dequantize, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matvec(op, thread, n_threads):
    """Rows times one column."""
    matvec_grid(prepare, weights, d_of, times_signed, start_at_zero, one_scale, BLOCK_BYTES, op, thread, n_threads)


@kernel
def few(op, thread, n_threads):
    """Rows times a few columns."""
    few_grid(prepare, weights, d_of, times_signed, start_at_zero, one_scale, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matmul(op, thread, n_threads):
    """Rows times the columns of a block."""
    matmul_tiles(unpack_row, finish_16, walk_grid, ROOM, 256, BLOCK_BYTES, op, thread, n_threads)

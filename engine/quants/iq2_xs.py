"""IQ2_XS: 256 weights of two bits, in 32 groups of eight that are entries of a grid of 512.

    d       f16       scale of the scales
    qs      64 bytes  of each group an u16: its index in the lower 9 bits, seven of its signs in the others
    scales  8 bytes   of two groups of 16 weights each, the first in the low nibble
                      2 + 64 + 8 = 74

A weight is ``d * (scale + 0.5) / 4 * entry * sign``. Layout: ggml-common.h, block_iq2_xs.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.embed import embed_rows
from engine.kernels.grid_tables import GRIDS
from engine.kernels.grids import (
    SCALES,
    SIGNS,
    dequantize_grid,
    even_signs,
    few_grid,
    matvec_grid,
    signs_of,
    start_at_zero,
    times_signed,
    turned,
    two_scales,
    unpack_grid,
    walk_grid,
)
from engine.kernels.matmul import finish_16
from engine.kernels.matmul_signed import ROOM
from engine.kernels.tiles import matmul_tiles

BLOCK_BYTES = 74
QS, SCALE_BYTES = 2, 66
FACTOR = np.float32(0.125)

grid = vec.table(GRIDS["IQ2_XS"].table)
nibbles = vec.constant_i16x16([1 << 9, 1 << 5] * 8)


@inner
def prepare(block, room):
    """Fill the room."""
    low, high = vec.load_i16x16(block + QS), vec.load_i16x16(block + QS + 32)
    vec.store_i8x32(room + SIGNS, even_signs(vec.low_bytes_of(vec.shift_right(low, 9), vec.shift_right(high, 9))))
    twice = vec.mul_high(vec.as_i16x16(vec.byte_each_4(vec.broadcast_8_bytes(block + SCALE_BYTES))), nibbles())
    vec.store_i16x16(room + SCALES, vec.or_(vec.and_(twice, vec.splat_i16x16(30)), vec.splat_i16x16(1)))


@inner
def weights(block, room, j):
    """The j-th 32 weights."""
    return vec.entries_by_nine_bits(grid(), block + QS + 8 * j), signs_of(room, j)


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
    matvec_grid(prepare, weights, d_of, times_signed, start_at_zero, two_scales, BLOCK_BYTES, op, thread, n_threads)


@kernel
def few(op, thread, n_threads):
    """Rows times a few columns."""
    few_grid(prepare, weights, d_of, times_signed, start_at_zero, two_scales, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matmul(op, thread, n_threads):
    """Rows times the columns of a block."""
    matmul_tiles(unpack_row, finish_16, walk_grid, ROOM, 256, BLOCK_BYTES, op, thread, n_threads)

"""IQ2_XS: 256 weights of two bits, in 32 groups of eight that are entries of a grid of 512.

    d       f16       scale of the scales
    qs      64 bytes  of each group an u16: its index in the lower 9 bits, seven of its signs in the others
    scales  8 bytes   of two groups of 16 weights each, the first in the low nibble
                      2 + 64 + 8 = 74

A weight is ``d * (scale + 0.5) / 4 * entry * sign``. Layout: ggml-common.h, block_iq2_xs.
"""

import numpy as np

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
from engine.simd import (
    and_,
    as_i16x16,
    broadcast_8_bytes,
    byte_each_4,
    constant_i16x16,
    entries_by_nine_bits,
    first_f32,
    fmul,
    load_f16x4,
    load_i16x16,
    low_bytes_of,
    mul_high,
    or_,
    shift_right,
    splat_f32x4,
    splat_i16x16,
    store_i8x32,
    store_i16x16,
    table,
)

BLOCK_BYTES = 74
QS, SCALE_BYTES = 2, 66
FACTOR = np.float32(0.125)

grid = table(GRIDS["IQ2_XS"].table)
nibbles = constant_i16x16([1 << 9, 1 << 5] * 8)


@inner
def prepare(block, room):
    """Fill the room."""
    low, high = load_i16x16(block + QS), load_i16x16(block + QS + 32)
    store_i8x32(room + SIGNS, even_signs(low_bytes_of(shift_right(low, 9), shift_right(high, 9))))
    twice = mul_high(as_i16x16(byte_each_4(broadcast_8_bytes(block + SCALE_BYTES))), nibbles())
    store_i16x16(room + SCALES, or_(and_(twice, splat_i16x16(30)), splat_i16x16(1)))


@inner
def weights(block, room, j):
    """The j-th 32 weights."""
    return entries_by_nine_bits(grid(), block + QS + 8 * j), signs_of(room, j)


@inner
def d_of(block, d_y):
    """Scale of the block times ``d_y``."""
    return first_f32(fmul(load_f16x4(block), splat_f32x4(d_y * FACTOR)))


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

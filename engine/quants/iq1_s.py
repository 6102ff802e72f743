"""IQ1_S: 256 weights of three values, in 32 groups of eight that are entries of a grid of 2048, and a shift.

    d   f16       scale of the scales
    qs  32 bytes  lower 8 bits of the indices
    qh  16 bytes  of each sub-block of 32 an u16: the upper 3 bits of its four indices, its scale in the next 3
                  bits, and in the last the sign of its shift
                  2 + 32 + 16 = 50

A weight is ``d * (2 * scale + 1) * (entry + shift)``, the shift being 1/8 or -1/8. Layout: ggml-common.h, block_iq1_s.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.embed import embed_rows
from engine.kernels.grid_tables import GRIDS
from engine.kernels.grids import (
    EIGHTS,
    SCALES,
    SIGNS,
    dequantize_grid,
    few_grid,
    lowered,
    matvec_grid,
    one_scale,
    raised_of,
    start_lowered,
    times_raised,
    unpack_grid,
    walk_grid,
)
from engine.kernels.matmul import finish_16
from engine.kernels.matmul_signed import ROOM
from engine.kernels.tiles import matmul_tiles

BLOCK_BYTES = 50
QS, QH = 2, 34
FACTOR = np.float32(0.125)

grid = vec.table(GRIDS["IQ1_S"].table)
upper_bits = vec.constant_i16x16([1 << 11, 1 << 8, 1 << 5, 1 << 2] * 4)


@inner
def store_offsets(block, room, k):
    """Of the k-th sixteen entries, and what they are raised by: 2 or 0 for a shift up or down."""
    words = vec.as_i16x16(vec.word_each_4(vec.broadcast_8_bytes(block + QH + 8 * k)))
    low = vec.shift_left(vec.widen_u8x16(vec.load_i8x16(block + QS + 16 * k)), 3)
    vec.store_i16x16(
        room + EIGHTS + 32 * k, vec.or_(low, vec.and_(vec.mul(words, upper_bits()), vec.splat_i16x16(7 << 11)))
    )
    return vec.sub(vec.splat_i16x16(2), vec.shift_left(vec.shift_right(words, 15), 1))


@inner
def prepare(block, room):
    """Fill the room."""
    vec.store_i8x32(room + SIGNS, vec.low_bytes_of(store_offsets(block, room, 0), store_offsets(block, room, 1)))
    words = vec.each_twice_i16x8(vec.load_i16x8(block + QH))
    vec.store_i16x16(
        room + SCALES, vec.or_(vec.and_(vec.shift_right(words, 11), vec.splat_i16x16(14)), vec.splat_i16x16(1))
    )


@inner
def weights(block, room, j):
    """The j-th 32 weights, ``RAISED_BY`` too large."""
    w = vec.add(vec.entries_by_offset(grid(), room + EIGHTS + 8 * j), raised_of(room, j))
    return w, w


@inner
def d_of(block, d_y):
    """Scale of the block times ``d_y``."""
    return vec.first_f32(vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(d_y * FACTOR)))


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile."""
    unpack_grid(prepare, weights, d_of, lowered, block, out)


@inner
def dequantize(block, out):
    """Write the 256 weights of a block as f32."""
    dequantize_grid(prepare, weights, d_of, lowered, block, out)


@kernel
def embed(op, thread, n_threads):
    """Rows by token id."""
    embed_rows(dequantize, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matvec(op, thread, n_threads):
    """Rows times one column."""
    matvec_grid(prepare, weights, d_of, times_raised, start_lowered, one_scale, BLOCK_BYTES, op, thread, n_threads)


@kernel
def few(op, thread, n_threads):
    """Rows times a few columns."""
    few_grid(prepare, weights, d_of, times_raised, start_lowered, one_scale, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matmul(op, thread, n_threads):
    """Rows times the columns of a block."""
    matmul_tiles(unpack_row, finish_16, walk_grid, ROOM, 256, BLOCK_BYTES, op, thread, n_threads)

"""IQ3_S: 256 weights of three bits, in 64 groups of four that are entries of a grid of 512.

    d       f16       scale of the scales
    qs      64 bytes  lower 8 bits of the indices
    qh      8 bytes   of each sub-block of 32 the ninth bits of its eight indices
    signs   32 bytes  of eight weights each
    scales  4 bytes   of two sub-blocks each, the first in the low nibble
                      2 + 64 + 8 + 32 + 4 = 110

A weight is ``d * (2 * scale + 1) * entry * sign``. Layout: ggml-common.h, block_iq3_s.
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.embed import embed_rows
from engine.kernels.grid_tables import GRIDS
from engine.kernels.grids import (
    FOURS,
    SCALES,
    SIGNS,
    dequantize_grid,
    few_grid,
    matvec_grid,
    one_scale,
    signs_of,
    start_at_zero,
    times_signed,
    turned,
    unpack_grid,
    walk_grid,
)
from engine.kernels.matmul import finish_16
from engine.kernels.matmul_signed import ROOM
from engine.kernels.tiles import matmul_tiles

BLOCK_BYTES = 110
QS, QH, SIGN_BYTES, SCALE_BYTES = 2, 66, 74, 106

grid = vec.table(GRIDS["IQ3_S"].table)
ninth_bits = vec.constant_i16x16([1 << (11 - k) for k in range(8)] * 2)
nibbles = vec.constant_i16x16(
    [1 << 9] * 2
    + [1 << 5] * 2
    + [1 << 9] * 2
    + [1 << 5] * 2
    + [1 << 9] * 2
    + [1 << 5] * 2
    + [1 << 9] * 2
    + [1 << 5] * 2
)


@inner
def store_offsets(block, room, k):
    """Of the k-th sixteen entries."""
    high = vec.as_i16x16(vec.byte_each_16(vec.broadcast_4_bytes(block + QH + 2 * k)))
    high = vec.and_(vec.mul(high, ninth_bits()), vec.splat_i16x16(1 << 11))
    low = vec.shift_left(vec.widen_u8x16(vec.load_i8x16(block + QS + 16 * k)), 3)
    vec.store_i16x16(room + FOURS + 32 * k, vec.or_(low, high))


@inner
def prepare(block, room):
    """Fill the room."""
    store_offsets(block, room, 0)
    store_offsets(block, room, 1)
    store_offsets(block, room, 2)
    store_offsets(block, room, 3)
    vec.store_i8x32(room + SIGNS, vec.load_i8x32(block + SIGN_BYTES))
    twice = vec.mul_high(vec.as_i16x16(vec.byte_each_8(vec.broadcast_4_bytes(block + SCALE_BYTES))), nibbles())
    vec.store_i16x16(room + SCALES, vec.or_(vec.and_(twice, vec.splat_i16x16(30)), vec.splat_i16x16(1)))


@inner
def weights(block, room, j):
    """The j-th 32 weights."""
    return vec.fours_by_offset(grid(), room + FOURS + 16 * j, 512 * 8), signs_of(room, j)


@inner
def d_of(block, d_y):
    """Scale of the block times ``d_y``."""
    return vec.first_f32(vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(d_y)))


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

"""BF16: weights as they are, bfloat16, the upper halves of float32; 2 bytes each, no blocks."""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.embed import embed_rows
from engine.kernels.matmul_float import TILE_COLS, unpack_floats, walk_floats
from engine.kernels.matvec import few_float, matvec_float
from engine.kernels.tiles import NARROW, leave_tile, matmul_tiles

ITEM_BYTES = 2


@inner
def unpack_row(source, out, n_live):
    """Write one row's part of a tile."""
    unpack_floats(vec.load_bf16x8, vec.load_bf16, ITEM_BYTES, source, out, n_live)


@inner
def dequantize(source, out):
    """Write one weight as f32."""
    vec.store_f32(out, vec.load_bf16(source))


@kernel
def embed(op, thread, n_threads):
    """Rows by token id."""
    embed_rows(dequantize, 1, ITEM_BYTES, op, thread, n_threads)


@kernel
def matvec(op, thread, n_threads):
    """Rows times one column."""
    matvec_float(vec.load_bf16x8, vec.load_bf16, ITEM_BYTES, op, thread, n_threads)


@kernel
def few(op, thread, n_threads):
    """Rows times a few columns."""
    few_float(vec.load_bf16x8, vec.load_bf16, ITEM_BYTES, op, thread, n_threads)


@kernel
def matmul(op, thread, n_threads):
    """Rows times the columns of a block."""
    tile_bytes = TILE_COLS * ITEM_BYTES
    matmul_tiles(unpack_row, leave_tile, walk_floats, NARROW, TILE_COLS, tile_bytes, op, thread, n_threads)

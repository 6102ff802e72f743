"""Weight rows times many activation columns: the loops of prefill, shared by every type.

Each thread unpacks eight rows into a tile of its own scratch memory and runs all columns of the block over it, four at
a time. In a tile the rows lie side by side, ``[group][8 rows][4 bytes]``, so a lane of every accumulator is one row:
nothing is summed across lanes, and a column's result does not depend on its neighbours.

A type supplies how a row is unpacked, and what four columns do with a tile. A row unpacks to ``ROW_BYTES``: bytes of
weights first, then scales; each 4-byte word of it becomes 32 bytes of the tile.
"""

from engine.jit import inner
from engine.kernels.share import share
from engine.records import MATMUL as F
from engine.records import STEP
from engine.simd import (
    fadd,
    load_f32,
    load_f32x8,
    load_i8x32,
    load_i64,
    prefetch_l1,
    rolled,
    splat_f32x8,
    store_f32,
    store_f32x8,
    transpose_store,
)

COLUMNS = 4
MAX_TOKENS = 512
CHUNK = 4
"""Tiles unpacked before the columns run over them: with the activations they stay in a 32 kB cache."""
ROW_BYTES = 384
TILE_BYTES = 8 * ROW_BYTES
_TILES = 8 * ROW_BYTES
_COLUMNS = _TILES + CHUNK * TILE_BYTES
SCRATCH_BYTES = _COLUMNS + 32 * MAX_TOKENS
"""Scratch memory of one thread for a block of up to ``MAX_TOKENS``: 3072 + 4 * 3072 + 16384 = 31744."""


@inner
def unpack_tile(unpack_row, source, row_bytes, n_rows, n_live, rows, tile):
    """Unpack up to eight rows side by side; missing rows repeat the last one and are never stored."""
    for r in range(rolled(8)):
        unpack_row(source + min(r, n_rows - 1) * row_bytes, rows + ROW_BYTES * r, n_live)
    for at in range(0, rolled(ROW_BYTES), 32):
        transpose_store(
            tile + 8 * at,
            load_i8x32(rows + at),
            load_i8x32(rows + at + ROW_BYTES),
            load_i8x32(rows + at + 2 * ROW_BYTES),
            load_i8x32(rows + at + 3 * ROW_BYTES),
            load_i8x32(rows + at + 4 * ROW_BYTES),
            load_i8x32(rows + at + 5 * ROW_BYTES),
            load_i8x32(rows + at + 6 * ROW_BYTES),
            load_i8x32(rows + at + 7 * ROW_BYTES),
        )


@inner
def matmul_tiles(unpack_row, columns, tile_cols, source_bytes, op, thread, n_threads):
    """All rows of a matrix against all columns of the step.

    Args:
        unpack_row: (source, out, n_live) -> None, writes one row's part of a tile; of its weights the first
            ``n_live`` exist.
        columns: (op, tile, c, i, n_live, acc) -> None, adds the products of the i-th tile with columns c to
            c + 3 to four f32x8 at ``acc``.
        tile_cols: weights of a row in one tile.
        source_bytes: what they take in the file.
    """
    weights, row_bytes = load_i64(op + F.weights), load_i64(op + F.row_bytes)
    n_rows, n_cols = load_i64(op + F.n_rows), load_i64(op + F.n_cols)
    n_tiles = (n_cols + tile_cols - 1) // tile_cols
    n_tokens = load_i64(load_i64(op + F.step) + STEP.n_tokens)
    scratch = load_i64(op + F.scratch) + thread * load_i64(op + F.scratch_bytes)
    tiles, acc = scratch + _TILES, scratch + _COLUMNS
    first, last = share(n_rows, 8, thread, n_threads)
    for row in range(first, last, 8):
        n_rows_here = min(8, last - row)
        clear_columns(acc, n_tokens)
        for start in range(0, n_tiles, CHUNK):
            end = min(start + CHUNK, n_tiles)
            for i in range(start, end):
                source, n_live = weights + row * row_bytes + i * source_bytes, min(tile_cols, n_cols - i * tile_cols)
                tile = tiles + (i - start) * TILE_BYTES
                unpack_tile(unpack_row, source, row_bytes, n_rows_here, n_live, scratch, tile)
            for c in range(0, n_tokens, COLUMNS):
                for i in range(start, end):
                    n_live = min(tile_cols, n_cols - i * tile_cols)
                    columns(op, tiles + (i - start) * TILE_BYTES, c, i, n_live, acc + 32 * c)
        store_columns(op, row, n_rows_here, acc, n_tokens)


@inner
def prefetch_columns(y, stride, n_bytes):
    """Ask for the activations of the next four columns while these four are worked on."""
    for c in range(COLUMNS, 2 * COLUMNS):
        for line in range(0, n_bytes, 64):
            prefetch_l1(y + c * stride + line)


@inner
def clear_columns(acc, n_tokens):
    """Set the accumulators of all columns to zero, the unused ones of the last four too."""
    for c in range((n_tokens + COLUMNS - 1) // COLUMNS * COLUMNS):
        store_f32x8(acc + 32 * c, splat_f32x8(0.0))


@inner
def store_columns(op, row, n_rows, acc, n_tokens):
    """Write up to eight rows of every column, with the bias or residual added where the record names one."""
    stride, out = load_i64(op + F.out_stride), load_i64(op + F.out)
    addend, add_stride = load_i64(op + F.add), load_i64(op + F.add_stride)
    for c in range(n_tokens):
        at, extra = out + 4 * (c * stride + row), addend + 4 * (c * add_stride + row)
        if n_rows == 8:
            value = load_f32x8(acc + 32 * c)
            if addend != 0:
                value = fadd(value, load_f32x8(extra))
            store_f32x8(at, value)
        else:
            for r in range(n_rows):
                one = load_f32(acc + 32 * c + 4 * r)
                if addend != 0:
                    one = one + load_f32(extra + 4 * r)
                store_f32(at + 4 * r, one)

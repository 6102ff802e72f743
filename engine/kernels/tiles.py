"""Weight rows times many activation columns: the loops of prefill, shared by every type.

Each thread unpacks eight rows into a tile of its own scratch memory and runs all columns of the block over it, four at
a time. In a tile the rows lie side by side, ``[group][8 rows][4 bytes]``, so a lane of every accumulator is one row:
nothing is summed across lanes, and a column's result does not depend on its neighbours.

A type supplies how a row is unpacked, and what four columns do with a tile. A row unpacks to ``ROW_BYTES``: bytes of
weights first, then scales; each 4-byte word of it becomes 32 bytes of the tile.
"""

from engine.jit import inner
from engine.kernels.matvec import prefetch_block
from engine.kernels.share import claim_rows
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
GROUPS = 4
"""Groups of eight rows that run over the same activations: these then come from memory a quarter as often, and four
tiles still fit into a 32 kB cache beside them."""
ROW_BYTES = 384
TILE_BYTES = 8 * ROW_BYTES
_TILES = 8 * ROW_BYTES
_SUMS = _TILES + GROUPS * TILE_BYTES
_GROUP_SUMS = 32 * MAX_TOKENS
SCRATCH_BYTES = _SUMS + GROUPS * _GROUP_SUMS
"""Scratch memory of one thread for a block of up to ``MAX_TOKENS``: 3072 + 4 * 3072 + 4 * 16384 = 80896."""


@inner
def unpack_tile(unpack_row, source, source_bytes, row_bytes, n_rows, n_live, rows, tile):
    """Unpack up to eight rows side by side; missing rows repeat the last one and are never stored."""
    for r in range(8):
        at = source + rolled(min(r, n_rows - 1)) * row_bytes
        prefetch_block(at + source_bytes, source_bytes)
        unpack_row(at, rows + ROW_BYTES * r, n_live)
    for group in range(ROW_BYTES // 32):
        at = rows + 32 * rolled(group)
        transpose_store(
            tile + 256 * group,
            load_i8x32(at),
            load_i8x32(at + ROW_BYTES),
            load_i8x32(at + 2 * ROW_BYTES),
            load_i8x32(at + 3 * ROW_BYTES),
            load_i8x32(at + 4 * ROW_BYTES),
            load_i8x32(at + 5 * ROW_BYTES),
            load_i8x32(at + 6 * ROW_BYTES),
            load_i8x32(at + 7 * ROW_BYTES),
        )


@inner
def matmul_tiles(unpack_row, columns, tile_cols, source_bytes, op, thread, n_threads):
    """All rows of a matrix against all columns of the step.

    Args:
        unpack_row: (source, out, n_live) -> None, writes one row's part of a tile; of its weights the first
            ``n_live`` exist.
        columns: (op, tile, c, i, n_live, acc) -> None, adds the products of the i-th tile of a row with columns c to
            c + 3 to four f32x8 at ``acc``.
        tile_cols: weights of a row in one tile; their activations take 256 bytes.
        source_bytes: what they take in the file.
    """
    weights, row_bytes = load_i64(op + F.weights), load_i64(op + F.row_bytes)
    n_cols = load_i64(op + F.n_cols)
    n_tokens = load_i64(load_i64(op + F.step) + STEP.n_tokens)
    scratch = load_i64(op + F.scratch) + thread * load_i64(op + F.scratch_bytes)
    tiles, acc = scratch + _TILES, scratch + _SUMS
    column_bytes = 256 // tile_cols * n_cols
    turn = 0
    while turn < n_threads:
        first, last, turn = claim_rows(op, 8 * GROUPS, thread, n_threads, turn)
        for row in range(first, last, 8 * GROUPS):
            n_rows_here = min(8 * GROUPS, last - row)
            n_groups = (n_rows_here + 7) // 8
            for g in range(n_groups):
                clear_columns(acc + _GROUP_SUMS * g, n_tokens)
            for i in range((n_cols + tile_cols - 1) // tile_cols):
                n_live = min(tile_cols, n_cols - i * tile_cols)
                for g in range(n_groups):
                    source, n_in_group = weights + (row + 8 * g) * row_bytes + i * source_bytes, n_rows_here - 8 * g
                    tile = tiles + TILE_BYTES * g
                    unpack_tile(unpack_row, source, source_bytes, row_bytes, min(8, n_in_group), n_live, scratch, tile)
                for c in range(0, n_tokens, COLUMNS):
                    prefetch_columns(load_i64(op + F.q) + 256 * i + (c + COLUMNS) * column_bytes, column_bytes)
                    for g in range(n_groups):
                        columns(op, tiles + TILE_BYTES * g, c, i, n_live, acc + _GROUP_SUMS * g + 32 * c)
            for g in range(n_groups):
                store_columns(op, row + 8 * g, min(8, n_rows_here - 8 * g), acc + _GROUP_SUMS * g, n_tokens)


@inner
def prefetch_columns(y, stride):
    """Ask for 256 bytes of each of the next four columns while others are worked on."""
    for c in range(COLUMNS):
        for line in range(0, 256, 64):
            prefetch_l1(y + c * stride + line)


@inner
def clear_columns(acc, n_tokens):
    """Set the accumulators of all columns to zero, the unused ones of the last four too."""
    for c in range((n_tokens + COLUMNS - 1) // COLUMNS * COLUMNS):
        store_f32x8(acc + 32 * rolled(c), splat_f32x8(0.0))


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
                one = load_f32(acc + 32 * c + 4 * rolled(r))
                if addend != 0:
                    one = one + load_f32(extra + 4 * r)
                store_f32(at + 4 * r, one)

"""Prefill: the product of a matrix with the activations of many tokens; the loops that all types
share.

out[(token), n_rows] f32 = W x, as in ``matvec``; a *column* is x of one token. Each thread unpacks
sixteen rows, 256 weights of each, into a tile of its own scratch memory, runs all columns of the
block over it, four at a time, and adds to sums [(column), 16 rows] f32 there; so a weight is
unpacked once for all tokens. Then come the next 256 weights, and at last the sums are written out.

In a tile the rows are side by side, ``[group][16 rows][4 bytes]``, so every lane of an accumulator
is a row: nothing is summed across lanes, and a column's result does not depend on its neighbours.
Four columns are side by side in the same way (``buffers.interleaved``). Both are for the sake of
the loads: each broadcast of four activations serves sixteen rows, and what is loaded together comes
from one line (PERFORMANCE.md).

A type supplies how a row is unpacked, and a walk that multiplies ready tiles by the columns. A row
unpacks to ``NARROW`` or ``WIDE`` bytes: weights first, then scales; each 4-byte word of it becomes
64 bytes of the tile.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matvec import each_line
from engine.kernels.records import MATMUL as F
from engine.kernels.share import CLAIM_BYTES, claim_rows, n_tokens_of
from engine.machine.level import HAS_AMX, SIXTEEN_TOKENS

TILE_TOKENS, INTERLEAVED_TOKENS = (16, 1) if SIXTEEN_TOKENS else (4, 4)
"""Columns that are multiplied at once, and those of them whose activations are side by side, four
of each."""
ROWS = 16
MAX_TOKENS = 512
TILES = 2
"""Tiles that run over the same activations: these then come from memory half as often, and both
tiles still fit into a 32 kB cache next to them."""
NARROW = 384
WIDE = 544
"""Bytes of an unpacked row: of 256 weights as int8, or as int16."""
HIGH_DIGITS = ROWS * NARROW
"""Where a tile of the narrow kind has 4096 bytes for the second digits of its weights
(``matmul_sixteens``)."""
ROOM_BYTES = 5120 if SIXTEEN_TOKENS else 256
"""Of sums on the way: int32 of four columns; or twice of sixteen in two digits, and f32 that no one
reads."""
TILE_BYTES = HIGH_DIGITS + 4096 if SIXTEEN_TOKENS else ROWS * WIDE
_ROOM = 8 * WIDE
_TILES = _ROOM + ROOM_BYTES
_SUMS = _TILES + TILES * TILE_BYTES
TILE_SUMS = 4 * ROWS * MAX_TOKENS
SCRATCH_BYTES = _SUMS + TILES * TILE_SUMS
"""Scratch memory of one thread for a block of up to ``MAX_TOKENS``: 4352 + 256 + 2 * 8704 + 2 *
32768 = 87552; with AMX 4352 + 5120 + 2 * 10240 + 2 * 32768 = 95488."""


@inner
def load_columns(op):
    """Where the activations of a step are: (q, d, sums, n_cols, columns rounded up to whole
    ``TILE_TOKENS``)."""
    q, d, sums, n_cols = vec.load_words(op, (F.q, F.d, F.sums, F.n_cols))
    return (
        q,
        d,
        sums,
        n_cols,
        (n_tokens_of(op) + TILE_TOKENS - 1) // TILE_TOKENS * TILE_TOKENS,
    )


def _columns_at(item_bytes):
    @inner
    def place(view, c, i, n_live):
        """Address of the activations of columns c to c + 3 that meet the i-th tile:
        ``[n_live/4][4 columns][4]``; with ``SIXTEEN_TOKENS`` of columns c to c + 15,
        ``[16 columns][n_live]``."""
        q, _, _, _, padded = view
        return q + item_bytes * (256 * i * padded + c * n_live)

    return place


bytes_at = _columns_at(1)
words_at = _columns_at(2)
"""Where int8 products find them, and int16 products."""


@inner
def unpack_half(
    unpack_row, room_bytes, source, source_bytes, row_bytes, n_rows, n_live, rows, tile
):
    """Unpack up to eight rows side by side into half a tile; missing rows repeat the last one and
    are never stored.

    Args:
        room_bytes: of an unpacked row, ``NARROW`` or ``WIDE``.
    """
    for r in range(8):
        at = source + vec.rolled(min(r, n_rows - 1)) * row_bytes
        each_line(vec.prefetch_l2, at + source_bytes, source_bytes)
        unpack_row(at, rows + room_bytes * r, n_live)
    for group in range(room_bytes // 32):
        vec.transpose(tile + 512 * group, 64, rows + 32 * vec.rolled(group), room_bytes)


@inner
def leave_tile(tile):
    """The tile is ready as it was unpacked."""


class Tiles(NamedTuple):
    """How rows are multiplied that were unpacked.

    Attributes:
        walk: (view, tiles, n_tiles, n_tokens, i, n_live, acc, room) -> None, adds the products of
            the i-th tiles of ``n_tiles`` times sixteen rows, ``TILE_BYTES`` apart, with all columns
            to f32 ``[columns][16 rows]`` at ``acc``, ``TILE_SUMS`` apart. View is what
            ``load_columns`` returns; room holds ``ROOM_BYTES``.
        finish: (tile) -> None, what a tile of sixteen rows still needs when they are side by side.
        room_bytes: of an unpacked row, ``NARROW`` or ``WIDE``.
        n_cols: weights of a row in one tile.
    """

    walk: Callable[..., Any]
    finish: Callable[..., Any] = leave_tile
    room_bytes: int = NARROW
    n_cols: int = 256


def each_columns(place, columns):
    """Make a walk: the products of ready tiles with all columns of the step, ``TILE_TOKENS`` at
    a time.

    Args:
        place: (view, c, i, n_live) -> address where ``columns`` finds the activations of its
            columns.
        columns: (view, tile, y, c, i, n_live, acc, room) -> None, adds the products of the i-th
            tile of sixteen rows with the columns from c on, found at y, to f32
            ``[columns][16 rows]`` at ``acc``.
    """

    @inner
    def walk(view, tiles, n_tiles, n_tokens, i, n_live, acc, room):
        for c in range(0, n_tokens, TILE_TOKENS):
            y = vec.rolled(place(view, c, i, n_live))
            for n in range(n_tiles):
                tile = vec.rolled(tiles + TILE_BYTES * n)
                columns(view, tile, y, c, i, n_live, acc + TILE_SUMS * n + 4 * ROWS * c, room)

    return walk


def matmul_tiles(unpack_row, kind, source_bytes):
    """Make the kernel ``matmul``: all rows of a matrix against all columns of the step.

    Args:
        unpack_row: (source, out, n_live) -> None, writes one row's part of a tile; of its weights
            the first ``n_live`` exist.
        kind: the ``Tiles`` that it fills.
        source_bytes: what a row's part of a tile takes in the file.
    """
    walk, finish, room_bytes, tile_cols = kind

    def matmul(op, thread, n_threads):
        weights, row_bytes, n_cols = vec.load_words(op, (F.weights, F.row_bytes, F.n_cols))
        view = load_columns(op)
        n_tokens = n_tokens_of(op)
        scratch = vec.load_i64(op + F.scratch) + thread * vec.load_i64(op + F.scratch_bytes)
        room = scratch + _ROOM
        tiles = scratch + _TILES
        acc = scratch + _SUMS
        if HAS_AMX:
            vec.shape_tiles()
        turn = 0
        while turn < n_threads:
            first, last, turn = claim_rows(op, ROWS * TILES, CLAIM_BYTES, thread, n_threads, turn)
            for row in range(first, last, ROWS * TILES):
                n_rows = min(ROWS * TILES, last - row)
                n_tiles = (n_rows + ROWS - 1) // ROWS
                for n in range(n_tiles):
                    clear_columns(acc + TILE_SUMS * n, n_tokens)
                for i in range((n_cols + tile_cols - 1) // tile_cols):
                    n_live = min(tile_cols, n_cols - i * tile_cols)
                    for half in range((n_rows + 7) // 8):
                        source = weights + (row + 8 * half) * row_bytes + i * source_bytes
                        n_here = min(8, n_rows - 8 * half)
                        at = tiles + TILE_BYTES * (half >> 1) + 32 * (half & 1)
                        unpack_half(
                            unpack_row,
                            room_bytes,
                            source,
                            source_bytes,
                            row_bytes,
                            n_here,
                            n_live,
                            scratch,
                            at,
                        )
                    for n in range(n_tiles):
                        finish(tiles + TILE_BYTES * n)
                    walk(view, tiles, n_tiles, n_tokens, i, n_live, acc, room)
                for n in range(n_tiles):
                    store_columns(
                        op,
                        row + ROWS * n,
                        min(ROWS, n_rows - ROWS * n),
                        acc + TILE_SUMS * n,
                        n_tokens,
                    )
        if HAS_AMX:
            vec.release_tiles()

    return matmul


@inner
def clear_columns(acc, n_tokens):
    """Set the accumulators of all columns to zero, those that pad too."""
    for c in range((n_tokens + TILE_TOKENS - 1) // TILE_TOKENS * TILE_TOKENS):
        at = acc + 4 * ROWS * vec.rolled(c)
        vec.store_f32x8(at, vec.splat_f32x8(0.0))
        vec.store_f32x8(at + 32, vec.splat_f32x8(0.0))


@inner
def store_columns(op, row, n_rows, acc, n_tokens):
    """Write up to sixteen rows of every column, with the bias or residual added where the record
    names one."""
    stride = 4 * vec.load_i64(op + F.out_stride)
    out = vec.load_i64(op + F.out) + 4 * row
    add = vec.load_i64(op + F.add)
    add_stride = 4 * vec.load_i64(op + F.add_stride)
    for c in range(n_tokens):
        at = acc + 4 * ROWS * c
        to = out + c * stride
        more = add + 4 * row + c * add_stride
        if n_rows == ROWS:
            low = vec.load_f32x8(at)
            high = vec.load_f32x8(at + 32)
            if add != 0:
                low = vec.fadd(low, vec.load_f32x8(more))
                high = vec.fadd(high, vec.load_f32x8(more + 32))
            vec.store_f32x8(to, low)
            vec.store_f32x8(to + 32, high)
        else:
            for r in range(0, 4 * n_rows, 4):
                one = vec.load_f32(at + r)
                if add != 0:
                    one += vec.load_f32(more + r)
                vec.store_f32(to + r, one)

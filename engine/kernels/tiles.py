"""Prefill: the product of a matrix with the activations of many tokens; loops that all types share.

out[t] = W @ x[t] (+ add[t]), f32, as in ``matvec``. Each thread unpacks sixteen rows, 256 weights
of each, into a tile in its scratch, multiplies it by all tokens of the block, four or sixteen at a
time, and adds to sums [tokens, 16 rows] f32 there. So a weight is unpacked once for all tokens.
After the last 256 weights the sums are written to ``out``.

In a tile the rows are side by side, ``[group][16 rows][4 bytes]``, so every lane of an accumulator
is a row: nothing is summed across lanes, and a token's result does not depend on other tokens. Four
tokens are interleaved in the same way (``buffers.interleaved``). Both serve the loads: each
broadcast of four activations serves sixteen rows, and values that are loaded together are in one
line (PERFORMANCE.md).

A type supplies how a row is unpacked, and a function that multiplies tiles by tokens. A row unpacks
to ``NARROW`` or ``WIDE`` bytes: weights first, then scales. Each 4-byte word of it becomes 64 bytes
of the tile.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matvec import prefetch_lines
from engine.kernels.records import MATMUL as F
from engine.kernels.share import CLAIM_BYTES, claim_rows, n_tokens_of
from engine.machine.level import HAS_AMX, SIXTEEN_TOKENS

TILE_TOKENS, INTERLEAVED_TOKENS = (16, 1) if SIXTEEN_TOKENS else (4, 4)
"""Tokens that are multiplied at once, and those of them whose activations are interleaved in
fours."""
ROWS = 16
MAX_TOKENS = 512
TILES = 2
"""Tiles that are multiplied by the same activations.

Activations then come from memory half as often, and both tiles still fit into a 32 kB cache next to
them.
"""
NARROW = 384
WIDE = 544
"""Bytes of an unpacked row of 256 weights: as int8, or as int16."""
HIGH_DIGITS = ROWS * NARROW
"""Offset in a narrow tile of 4096 bytes for the second digits of its weights
(``matmul_sixteens``)."""
PARTIAL_BYTES = 5120 if SIXTEEN_TOKENS else 256
"""Bytes of partial sums.

int32 of four tokens; or of sixteen in two digits, twice, and f32 that nothing reads.
"""
TILE_BYTES = HIGH_DIGITS + 4096 if SIXTEEN_TOKENS else ROWS * WIDE
_PARTIAL = 8 * WIDE
_TILES = _PARTIAL + PARTIAL_BYTES
_SUMS = _TILES + TILES * TILE_BYTES
TILE_SUMS = 4 * ROWS * MAX_TOKENS
SCRATCH_BYTES = _SUMS + TILES * TILE_SUMS
"""Bytes of a thread's scratch for a block of up to ``MAX_TOKENS``.

4352 + 256 + 2 * 8704 + 2 * 32768 = 87552; with AMX 4352 + 5120 + 2 * 10240 + 2 * 32768 = 95488.
"""


@inner
def load_activations(op):
    """Return the addresses of a step's activations.

    Returns:
        (q, d, sums, n_cols, tokens rounded up to a multiple of ``TILE_TOKENS``).
    """
    q, d, sums, n_cols = vec.load_words(op, (F.q, F.d, F.sums, F.n_cols))
    return (
        q,
        d,
        sums,
        n_cols,
        (n_tokens_of(op) + TILE_TOKENS - 1) // TILE_TOKENS * TILE_TOKENS,
    )


def _activations_at(item_bytes):
    @inner
    def address_of(view, c, i, n_live):
        """Return the address of the activations of tokens c to c + 3 for tile i.

        They are ``[n_live/4][4 tokens][4]``; with ``SIXTEEN_TOKENS`` those of tokens c to c + 15,
        ``[16 tokens][n_live]``.
        """
        q, _, _, _, n_padded = view
        return q + item_bytes * (256 * i * n_padded + c * n_live)

    return address_of


bytes_at = _activations_at(1)
words_at = _activations_at(2)
"""Addresses of activations for products of int8, and of int16."""


@inner
def unpack_half(
    unpack_row, unpacked_bytes, source, source_bytes, row_bytes, n_rows, n_live, rows, tile
):
    """Unpack up to eight rows side by side into half a tile.

    Missing rows repeat the last one; they are never stored.

    Args:
        unpacked_bytes: Bytes of an unpacked row, ``NARROW`` or ``WIDE``.
    """
    for r in range(8):
        row_address = source + vec.rolled(min(r, n_rows - 1)) * row_bytes
        prefetch_lines(vec.prefetch_l2, row_address + source_bytes, source_bytes)
        unpack_row(row_address, rows + unpacked_bytes * r, n_live)
    for group in range(unpacked_bytes // 32):
        vec.transpose(tile + 512 * group, 64, rows + 32 * vec.rolled(group), unpacked_bytes)


@inner
def keep_tile(tile):
    """Leave a tile as it was unpacked."""


class Tiles(NamedTuple):
    """Multiplication of unpacked rows by tokens.

    Attributes:
        multiply: (view, tiles, n_tiles, n_tokens, i, n_live, acc, partial) -> None, multiplies
            tiles i of ``n_tiles`` times sixteen rows, ``TILE_BYTES`` apart, by all tokens and adds
            the products to f32 ``[tokens][16 rows]`` at ``acc``, ``TILE_SUMS`` apart. ``view`` is
            the result of ``load_activations``; ``partial`` holds ``PARTIAL_BYTES``.
        finish: (tile) -> None, completes a tile once its sixteen rows are side by side.
        unpacked_bytes: Bytes of an unpacked row, ``NARROW`` or ``WIDE``.
        n_cols: Weights of a row in one tile.
    """

    multiply: Callable[..., Any]
    finish: Callable[..., Any] = keep_tile
    unpacked_bytes: int = NARROW
    n_cols: int = 256


def loop_over_tokens(address_of, tokens):
    """Make the function that multiplies tiles by all tokens, ``TILE_TOKENS`` at a time.

    Args:
        address_of: (view, c, i, n_live) -> address of the activations that ``tokens`` reads.
        tokens: (view, tile, y, c, i, n_live, acc, partial) -> None, adds the products of tile i of
            sixteen rows with the tokens from c on, found at y, to f32 ``[tokens][16 rows]`` at
            ``acc``.
    """

    @inner
    def multiply(view, tiles, n_tiles, n_tokens, i, n_live, acc, partial):
        for c in range(0, n_tokens, TILE_TOKENS):
            y = vec.rolled(address_of(view, c, i, n_live))
            for n in range(n_tiles):
                tile = vec.rolled(tiles + TILE_BYTES * n)
                tokens(view, tile, y, c, i, n_live, acc + TILE_SUMS * n + 4 * ROWS * c, partial)

    return multiply


def matmul_tiles(unpack_row, tiles_kind, source_bytes):
    """Make the kernel ``matmul``: all rows of a matrix times all tokens of the step.

    Args:
        unpack_row: (source, out, n_live) -> None, writes one row's part of a tile; the first
            ``n_live`` weights exist.
        tiles_kind: ``Tiles`` that the rows fill.
        source_bytes: Bytes of a row's part of a tile in the file.
    """
    multiply, finish, unpacked_bytes, tile_cols = tiles_kind

    def matmul(op, thread, n_threads):
        weights, row_bytes, n_cols = vec.load_words(op, (F.weights, F.row_bytes, F.n_cols))
        view = load_activations(op)
        n_tokens = n_tokens_of(op)
        scratch = vec.load_i64(op + F.scratch) + thread * vec.load_i64(op + F.scratch_bytes)
        partial = scratch + _PARTIAL
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
                    clear_sums_of_tokens(acc + TILE_SUMS * n, n_tokens)
                for i in range((n_cols + tile_cols - 1) // tile_cols):
                    n_live = min(tile_cols, n_cols - i * tile_cols)
                    for half in range((n_rows + 7) // 8):
                        source = weights + (row + 8 * half) * row_bytes + i * source_bytes
                        n_rows_in_half = min(8, n_rows - 8 * half)
                        half_tile = tiles + TILE_BYTES * (half >> 1) + 32 * (half & 1)
                        unpack_half(
                            unpack_row,
                            unpacked_bytes,
                            source,
                            source_bytes,
                            row_bytes,
                            n_rows_in_half,
                            n_live,
                            scratch,
                            half_tile,
                        )
                    for n in range(n_tiles):
                        finish(tiles + TILE_BYTES * n)
                    multiply(view, tiles, n_tiles, n_tokens, i, n_live, acc, partial)
                for n in range(n_tiles):
                    store_tokens(
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
def clear_sums_of_tokens(acc, n_tokens):
    """Set the sums of all tokens to zero, padding included."""
    for c in range((n_tokens + TILE_TOKENS - 1) // TILE_TOKENS * TILE_TOKENS):
        address = acc + 4 * ROWS * vec.rolled(c)
        vec.store_f32x8(address, vec.splat_f32x8(0.0))
        vec.store_f32x8(address + 32, vec.splat_f32x8(0.0))


@inner
def store_tokens(op, row, n_rows, acc, n_tokens):
    """Write up to sixteen rows of every token, plus the bias or residual if the record names
    one."""
    stride = 4 * vec.load_i64(op + F.out_stride)
    out = vec.load_i64(op + F.out) + 4 * row
    add = vec.load_i64(op + F.add)
    add_stride = 4 * vec.load_i64(op + F.add_stride)
    for c in range(n_tokens):
        source = acc + 4 * ROWS * c
        target = out + c * stride
        addend = add + 4 * row + c * add_stride
        if n_rows == ROWS:
            low = vec.load_f32x8(source)
            high = vec.load_f32x8(source + 32)
            if add != 0:
                low = vec.fadd(low, vec.load_f32x8(addend))
                high = vec.fadd(high, vec.load_f32x8(addend + 32))
            vec.store_f32x8(target, low)
            vec.store_f32x8(target + 32, high)
        else:
            for r in range(0, 4 * n_rows, 4):
                value = vec.load_f32(source + r)
                if add != 0:
                    value += vec.load_f32(addend + r)
                vec.store_f32(target + r, value)

"""Tiles of bytes, sixteen rows times sixteen columns at a time: the products of prefill with AMX.

Its registers sum up in int32 and know no scales. Weights of the K types are therefore multiplied by
their integer scale when their tile is ready, and the product is kept as two digits of base 128:
each a signed byte, so that all 256 weights of a row are one sum for each digit. Both sums are
exact, and so is ``low + 128 * high``.
"""

from engine import simd as vec
from engine.jit import inner
from engine.machine.level import HAS_AMX
from engine.simd.tile_registers import (
    GROUPS_16,
    GROUPS_32,
    GROUPS_64,
    LINES_16,
    LINES_32,
    LINES_64,
    MORE_SUMS,
    SUMS,
)

SUMS_BYTES = 1024
"""int32 ``[16 columns][16 rows]``."""


@inner
def product_plain(n_weights, y, stride, tile, out):
    """Sums of the products of a tile with sixteen columns, int32 ``[16 columns][16 rows]``, one by
    one.

    Args:
        n_weights: of a row.
        y, stride: address of the first column's activations, and bytes to the next column's.
    """
    for column in range(16):
        for row in range(16):
            total = 0
            for k in range(n_weights):
                total += vec.load_i8(y + stride * column + k) * vec.load_i8(
                    tile + 64 * (k >> 2) + 4 * row + (k & 3)
                )
            vec.store_i32(out + 64 * column + 4 * row, total)


@inner
def product_16_plain(y, stride, tile, out):
    """``product_plain`` of 16 weights."""
    product_plain(16, y, stride, tile, out)


@inner
def start_32_plain(y, stride, tile):
    """Begin a product of 32 weights: ``finish_32`` ends it, and in between the registers
    multiply."""


@inner
def finish_32_plain(y, stride, tile, out):
    """Write the sums of the product that was begun, as ``product_plain``."""
    product_plain(32, y, stride, tile, out)


@inner
def multiply_digits_plain(add_two, scaled, kept, totals, d_y, sums, acc, y, low, high, out):
    """``product_plain`` of 256 weights in two digits: sums of the low ones, and after them of the
    high ones; and sixteen columns of an earlier product added, two at a time, while the registers
    multiply.

    Args:
        add_two: (scaled, kept, totals, d_y, sums, acc, n) -> None, adds columns n and n + 1.
        low, high: addresses of the digits.
    """
    product_plain(256, y, 256, low, out)
    product_plain(256, y, 256, high, out + SUMS_BYTES)
    for n in range(0, 16, 2):
        add_two(scaled, kept, totals, d_y, sums, acc, n)


@inner
def product_16_in_tiles(y, stride, tile, out):
    """The same with AMX."""
    vec.clear_tile(SUMS)
    vec.load_tile(LINES_16, y, stride)
    vec.load_tile(GROUPS_16, tile, 64)
    vec.multiply_tiles(SUMS, LINES_16, GROUPS_16)
    vec.store_tile(SUMS, out, 64)


@inner
def start_32_in_tiles(y, stride, tile):
    """The same with AMX."""
    vec.clear_tile(SUMS)
    vec.load_tile(LINES_32, y, stride)
    vec.load_tile(GROUPS_32, tile, 64)
    vec.multiply_tiles(SUMS, LINES_32, GROUPS_32)


@inner
def finish_32_in_tiles(y, stride, tile, out):
    """The same with AMX."""
    vec.store_tile(SUMS, out, 64)


@inner
def multiply_digits_in_tiles(add_two, scaled, kept, totals, d_y, sums, acc, y, low, high, out):
    """The same with AMX; registers are renamed, so the same few serve all four steps."""
    vec.clear_tile(SUMS)
    vec.clear_tile(MORE_SUMS)
    for k in range(vec.rolled(4)):
        vec.load_tile(LINES_64, y + 64 * k, 256)
        vec.load_tile(GROUPS_64, low + 1024 * k, 64)
        vec.multiply_tiles(SUMS, LINES_64, GROUPS_64)
        add_two(scaled, kept, totals, d_y, sums, acc, 4 * k)
        vec.load_tile(GROUPS_64, high + 1024 * k, 64)
        vec.multiply_tiles(MORE_SUMS, LINES_64, GROUPS_64)
        add_two(scaled, kept, totals, d_y, sums, acc, 4 * k + 2)
    vec.store_tile(SUMS, out, 64)
    vec.store_tile(MORE_SUMS, out + SUMS_BYTES, 64)


product_16 = product_16_in_tiles if HAS_AMX else product_16_plain
start_32, finish_32 = (
    (start_32_in_tiles, finish_32_in_tiles) if HAS_AMX else (start_32_plain, finish_32_plain)
)
multiply_digits = multiply_digits_in_tiles if HAS_AMX else multiply_digits_plain


@inner
def split_line(weights, first, last, high):
    """Write the digits of four weights of sixteen rows times their scales: the low ones where the
    weights are.

    Args:
        first, last: scales times 256 of the first two and last two of each four rows; so are the
        weights, and the
            upper half of such a product is the product.
    """
    w = vec.load_i8x64(weights)
    a = vec.mul_upper(vec.first_rows_i8(w), first)
    b = vec.mul_upper(vec.last_rows_i8(w), last)
    low = vec.splat_i16x32(127)
    vec.store_i8x64(weights, vec.bytes_in_turn(vec.and_(a, low), vec.and_(b, low)))
    vec.store_i8x64(
        high, vec.bytes_in_turn(vec.shift_lanes_right(a, 7), vec.shift_lanes_right(b, 7))
    )


@inner
def split_tile(group, tile, scales, high):
    """Write the digits of a tile of 256 weights times their scales: 0 to 127, and above them -128
    to 127.

    Args:
        group: weights that share a scale, 16 or 32.
        scales: address of the tile's scales, two equal int16 for each row and group.
        high: address of the high digits, 4096 bytes.
    """
    for g in range(vec.rolled(256 // group)):
        words = vec.shift_lanes_left(vec.load_i16x32(scales + 64 * g), 8)
        first = vec.words_of_first_rows(words)
        last = vec.words_of_last_rows(words)
        for k in range(0, 16 * group, 64):
            at = 16 * group * g + k
            split_line(tile + at, first, last, high + at)

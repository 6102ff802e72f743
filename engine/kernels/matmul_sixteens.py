"""Products of byte tiles in prefill, sixteen rows times sixteen tokens at a time: AMX.

AMX sums in int32 and knows no scales. So weights of the K types are multiplied by their integer
scale once their tile is unpacked. The product is stored as two digits of base 128, each a signed
byte, and all 256 weights of a row are one sum for each digit. Both sums are exact, and so is ``low
+ 128 * high``.
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
"""Bytes of the sums, int32 ``[16 tokens][16 rows]``."""


@inner
def product_plain(n_weights, y, stride, tile, out):
    """Compute the products of a tile with sixteen tokens one by one: int32 ``[16 tokens][16
    rows]``.

    Args:
        n_weights: Weights of a row.
        y, stride: Address of the first token's activations, and bytes to those of the next
            token.
    """
    for token in range(16):
        for row in range(16):
            total = 0
            for k in range(n_weights):
                total += vec.load_i8(y + stride * token + k) * vec.load_i8(
                    tile + 64 * (k >> 2) + 4 * row + (k & 3)
                )
            vec.store_i32(out + 64 * token + 4 * row, total)


@inner
def product_16_plain(y, stride, tile, out):
    """Compute ``product_plain`` of 16 weights."""
    product_plain(16, y, stride, tile, out)


@inner
def start_32_plain(y, stride, tile):
    """Start a product of 32 weights, which ``finish_32`` completes.

    In between, the tile registers multiply.
    """


@inner
def finish_32_plain(y, stride, tile, out):
    """Write the sums of the product that was started, as ``product_plain``."""
    product_plain(32, y, stride, tile, out)


@inner
def multiply_digits_plain(add_two, scaled, loaded, totals, d_y, sums, acc, y, low, high, out):
    """Compute ``product_plain`` of 256 weights in two digits: sums of the low, then of the high
    digits.

    While the registers multiply, sixteen tokens of an earlier product are added, two at a time.

    Args:
        add_two: (scaled, loaded, totals, d_y, sums, acc, n) -> None, adds tokens n and n + 1.
        low, high: Addresses of the digits.
    """
    product_plain(256, y, 256, low, out)
    product_plain(256, y, 256, high, out + SUMS_BYTES)
    for n in range(0, 16, 2):
        add_two(scaled, loaded, totals, d_y, sums, acc, n)


@inner
def product_16_in_tiles(y, stride, tile, out):
    """Compute ``product_16_plain`` with AMX."""
    vec.clear_tile(SUMS)
    vec.load_tile(LINES_16, y, stride)
    vec.load_tile(GROUPS_16, tile, 64)
    vec.multiply_tiles(SUMS, LINES_16, GROUPS_16)
    vec.store_tile(SUMS, out, 64)


@inner
def start_32_in_tiles(y, stride, tile):
    """Compute ``start_32_plain`` with AMX."""
    vec.clear_tile(SUMS)
    vec.load_tile(LINES_32, y, stride)
    vec.load_tile(GROUPS_32, tile, 64)
    vec.multiply_tiles(SUMS, LINES_32, GROUPS_32)


@inner
def finish_32_in_tiles(y, stride, tile, out):
    """Compute ``finish_32_plain`` with AMX."""
    vec.store_tile(SUMS, out, 64)


@inner
def multiply_digits_in_tiles(add_two, scaled, loaded, totals, d_y, sums, acc, y, low, high, out):
    """Compute ``multiply_digits_plain`` with AMX.

    The processor renames registers, so the same ones serve all four steps.
    """
    vec.clear_tile(SUMS)
    vec.clear_tile(MORE_SUMS)
    for k in range(vec.rolled(4)):
        vec.load_tile(LINES_64, y + 64 * k, 256)
        vec.load_tile(GROUPS_64, low + 1024 * k, 64)
        vec.multiply_tiles(SUMS, LINES_64, GROUPS_64)
        add_two(scaled, loaded, totals, d_y, sums, acc, 4 * k)
        vec.load_tile(GROUPS_64, high + 1024 * k, 64)
        vec.multiply_tiles(MORE_SUMS, LINES_64, GROUPS_64)
        add_two(scaled, loaded, totals, d_y, sums, acc, 4 * k + 2)
    vec.store_tile(SUMS, out, 64)
    vec.store_tile(MORE_SUMS, out + SUMS_BYTES, 64)


product_16 = product_16_in_tiles if HAS_AMX else product_16_plain
start_32, finish_32 = (
    (start_32_in_tiles, finish_32_in_tiles) if HAS_AMX else (start_32_plain, finish_32_plain)
)
multiply_digits = multiply_digits_in_tiles if HAS_AMX else multiply_digits_plain


@inner
def split_line(weights, first, last, high):
    """Write the digits of four weights of sixteen rows times their scales.

    The low digits replace the weights.

    Args:
        first, last: Scales times 256 of the first two and the last two of each four rows. Weights
            are times 256, too, so the upper half of a product is the product itself.
    """
    w = vec.load_i8x64(weights)
    a = vec.mul_upper(vec.first_rows_i8(w), first)
    b = vec.mul_upper(vec.last_rows_i8(w), last)
    low = vec.splat_i16x32(127)
    vec.store_i8x64(weights, vec.interleaved_bytes(vec.and_(a, low), vec.and_(b, low)))
    vec.store_i8x64(
        high, vec.interleaved_bytes(vec.shift_lanes_right(a, 7), vec.shift_lanes_right(b, 7))
    )


@inner
def split_tile(group, tile, scales, high):
    """Write the digits of a tile of 256 weights times their scales: 0 to 127, and above them -128
    to 127.

    Args:
        group: Weights that share a scale, 16 or 32.
        scales: Address of the tile's scales, two equal int16 for each row and group.
        high: Address of the high digits, 4096 bytes.
    """
    for g in range(vec.rolled(256 // group)):
        words = vec.shift_lanes_left(vec.load_i16x32(scales + 64 * g), 8)
        first = vec.words_of_first_rows(words)
        last = vec.words_of_last_rows(words)
        for k in range(0, 16 * group, 64):
            offset = 16 * group * g + k
            split_line(tile + offset, first, last, high + offset)

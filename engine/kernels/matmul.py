"""Tiles of 256-weight blocks times columns in q8_k form: what the K types share in prefill.

An unpacked row holds 256 bytes of weights, then 16 scales as two equal int16 each (eight are used by the types with
sub-blocks of 32), eight pairs of int16 minima, and the two f32 scales.
"""

from engine.jit import inner
from engine.kernels.matmul_fours import no_fours, sixteen_weights
from engine.kernels.matmul_sixteens import SUMS_BYTES, product_of_digits, split_tile
from engine.kernels.rows import (
    add_word_pairs,
    broadcast_4,
    floats_of_ints,
    load_floats,
    load_ints,
    load_words,
    splat_floats,
    splat_ints,
    store_floats,
    words_of_bytes,
)
from engine.kernels.tiles import HIGH_DIGITS, leave_tile
from engine.simd import (
    add,
    broadcast_4_bytes,
    fma,
    fmul,
    in_turn,
    load_f32,
    load_i8x32,
    load_i16x16,
    load_i32x8,
    load_i32x16,
    maddubs,
    maddwd,
    mul,
    rolled,
    shift_lanes_left,
    shift_lanes_right,
    splat_i16x16,
    splat_i32x8,
    store_i32x8,
    store_i32x16,
)
from engine.simd.level import FOURS_OFFSET, SIXTEEN_COLUMNS, SIXTEEN_ROWS, SUMS_FOURS

ROW_SCALES, ROW_MINIMA, ROW_D, ROW_DMIN = 256, 320, 352, 356
"""Byte offsets in an unpacked row: 256 + 64 + 32 + 4 + 4 = 360 of the 384."""
_SCALES, _MINIMA, _D, _DMIN = 16 * ROW_SCALES, 16 * ROW_MINIMA, 16 * ROW_D, 16 * ROW_DMIN


@inner
def add_two(a, b, p, q):
    """Two products, then two sums: in turn, sums take the multipliers' places on processors that add everywhere."""
    p, q = in_turn(p), in_turn(q)
    return in_turn(add(a, p)), in_turn(add(b, q))


@inner
def add_products(tile, y, s):
    """Products of four unsigned weights of sixteen rows with four columns, added to i16x16: columns of the first eight
    rows, then of the others."""
    a0, a1, a2, a3, b0, b1, b2, b3 = s
    low, high = load_i8x32(tile), load_i8x32(tile + 32)
    y0, y1 = broadcast_4_bytes(y), broadcast_4_bytes(y + 4)
    a0, b0 = add_two(a0, b0, maddubs(low, y0), maddubs(high, y0))
    a1, b1 = add_two(a1, b1, maddubs(low, y1), maddubs(high, y1))
    y2, y3 = broadcast_4_bytes(y + 8), broadcast_4_bytes(y + 12)
    a2, b2 = add_two(a2, b2, maddubs(low, y2), maddubs(high, y2))
    a3, b3 = add_two(a3, b3, maddubs(low, y3), maddubs(high, y3))
    return a0, a1, a2, a3, b0, b1, b2, b3


@inner
def two(tile, y, s):
    """``add_products`` of eight weights: all that fits into int16 where they have six bits."""
    return add_products(tile + 64, y + 16, add_products(tile, y, s))


@inner
def four(tile, y, s):
    """The same of 16 weights: five bits."""
    return two(tile + 128, y + 32, two(tile, y, s))


@inner
def eight(tile, y, s):
    """The same of 32 weights: four bits."""
    return four(tile + 256, y + 64, four(tile, y, s))


@inner
def add_products_of_two(tile, y, s):
    """``add_products`` with two columns."""
    a0, a1, b0, b1 = s
    low, high = load_i8x32(tile), load_i8x32(tile + 32)
    y0, y1 = broadcast_4_bytes(y), broadcast_4_bytes(y + 4)
    a0, b0 = add_two(a0, b0, maddubs(low, y0), maddubs(high, y0))
    a1, b1 = add_two(a1, b1, maddubs(low, y1), maddubs(high, y1))
    return a0, a1, b0, b1


@inner
def sum_two_columns(n_products, group, tile, y, totals):
    """``sum_by_words`` for two of the columns: beside the sums of four there is no register left for totals."""
    zero = splat_i16x16(0)
    t0, t1, u0, u1 = splat_i32x8(0), splat_i32x8(0), splat_i32x8(0), splat_i32x8(0)
    for k in range(0, 256, n_products):
        s = (zero, zero, zero, zero)
        for n in range(k, k + n_products, 4):
            s = add_products_of_two(tile + 16 * n, y + 4 * n, s)
        a0, a1, b0, b1 = s
        scale = load_i16x16(tile + _SCALES + 64 * (k // group))
        t0, t1 = add(t0, maddwd(a0, scale)), add(t1, maddwd(a1, scale))
        scale = load_i16x16(tile + _SCALES + 64 * (k // group) + 32)
        u0, u1 = add(u0, maddwd(b0, scale)), add(u1, maddwd(b1, scale))
    store_i32x8(totals, t0)
    store_i32x8(totals + 32, u0)
    store_i32x8(totals + 64, t1)
    store_i32x8(totals + 96, u1)


@inner
def sum_by_words(n_products, group, tile, y, totals):
    """Exact integer part of one superblock, i32x8 ``[4 columns][2 halves of the rows]`` at ``totals``.

    Args:
        n_products: as many as fit into int16: 8 of six bits, 16 of five, 32 of four.
        group: weights that share a scale, 16 or 32.
    """
    sum_two_columns(n_products, group, tile, y, totals)
    sum_two_columns(n_products, group, tile, y + 8, totals + 128)


@inner
def add_four_totals(totals, t, scale):
    """Add the scaled sums of four columns to the i32x8 at an address."""
    t0, t1, t2, t3 = t
    store_i32x8(totals, add(load_i32x8(totals), mul(t0, scale)))
    store_i32x8(totals + 64, add(load_i32x8(totals + 64), mul(t1, scale)))
    store_i32x8(totals + 128, add(load_i32x8(totals + 128), mul(t2, scale)))
    store_i32x8(totals + 192, add(load_i32x8(totals + 192), mul(t3, scale)))


@inner
def sum_in_halves(n_products, group, tile, y, totals):
    """The same for processors with VNNI; as many products as share a scale fit together."""
    for k in range(8):
        store_i32x8(totals + 32 * k, splat_i32x8(0))
    for k in range(0, 256, group):
        low, high = no_fours()
        for n in range(0, group, 16):
            low, high = sixteen_weights(tile + 16 * (k + n), y + 4 * (k + n), (low, high))
        scales = tile + _SCALES + 64 * (k // group)
        add_four_totals(totals, low, shift_lanes_right(load_i32x8(scales), 16))
        add_four_totals(totals + 32, high, shift_lanes_right(load_i32x8(scales + 32), 16))


@inner
def sum_whole(n_products, group, tile, y, totals):
    """The same with sixteen rows in a register."""
    t0, t1, t2, t3 = no_fours()
    for k in range(0, 256, group):
        t = no_fours()
        for n in range(0, group, 16):
            t = sixteen_weights(tile + 16 * (k + n), y + 4 * (k + n), t)
        scale = shift_lanes_right(load_i32x16(tile + _SCALES + 64 * (k // group)), 16)
        t0, t1 = add(t0, mul(t[0], scale)), add(t1, mul(t[1], scale))
        t2, t3 = add(t2, mul(t[2], scale)), add(t3, mul(t[3], scale))
    store_i32x16(totals, t0)
    store_i32x16(totals + 64, t1)
    store_i32x16(totals + 128, t2)
    store_i32x16(totals + 192, t3)


@inner
def sum_by_sixteens(n_products, group, tile, y, totals):
    """The same for processors with AMX, of sixteen columns; in two digits, see ``load_digits``."""
    product_of_digits(y, tile, tile + HIGH_DIGITS, totals)


@inner
def load_digits(at):
    """What ``sum_by_sixteens`` found for one column."""
    return add(load_ints(at), shift_lanes_left(load_ints(at + SUMS_BYTES), 7))


@inner
def split_groups_of_16(tile):
    """Multiply the weights of a tile by their scales."""
    split_tile(16, tile, tile + _SCALES, tile + HIGH_DIGITS)


@inner
def split_groups_of_32(tile):
    """The same with eight scales."""
    split_tile(32, tile, tile + _SCALES, tile + HIGH_DIGITS)


finish_16, finish_32 = (split_groups_of_16, split_groups_of_32) if SIXTEEN_COLUMNS else (leave_tile, leave_tile)
sum_by_fours = sum_by_sixteens if SIXTEEN_COLUMNS else sum_whole if SIXTEEN_ROWS else sum_in_halves
sum_columns = sum_by_fours if SUMS_FOURS else sum_by_words
load_total = load_digits if SIXTEEN_COLUMNS else load_ints


@inner
def minima_total(n_pairs, tile, sums):
    """Sum over pairs of sub-blocks of minimum times activation sum, for one column."""
    total = splat_ints(0)
    for p in range(n_pairs):
        pair = words_of_bytes(broadcast_4(sums + 4 * p))
        total = add(total, add_word_pairs(load_words(tile + _MINIMA + 64 * p), pair))
    return total


@inner
def minima_of_32(tile, t, sums):
    """One column's value before the activations' scale: d * t + dmin * minima, eight minima."""
    value = fmul(load_floats(tile + _D), floats_of_ints(t))
    return fma(load_floats(tile + _DMIN), floats_of_ints(minima_total(4, tile, sums + 32)), value)


@inner
def minima_of_16(tile, t, sums):
    """The same with sixteen minima."""
    value = fmul(load_floats(tile + _D), floats_of_ints(t))
    return fma(load_floats(tile + _DMIN), floats_of_ints(minima_total(8, tile, sums)), value)


@inner
def offsets_of_32(tile, t, sums):
    """One column's value where the minima are multiples of the scales, and so stay integers; eight minima."""
    return fmul(load_floats(tile + _D), floats_of_ints(add(t, minima_total(4, tile, sums + 32))))


@inner
def offsets_of_16(tile, t, sums):
    """The same with sixteen minima."""
    return fmul(load_floats(tile + _D), floats_of_ints(add(t, minima_total(8, tile, sums))))


@inner
def products_alone(tile, t, sums):
    """The same where there are no minima."""
    return fmul(load_floats(tile + _D), floats_of_ints(t))


stored_32, stored_16 = (offsets_of_32, offsets_of_16) if FOURS_OFFSET else (products_alone, products_alone)
"""One column's value of signed weights as they are stored (``FOURS_OFFSET``)."""


@inner
def add_column(scaled, tile, total, sums, d_y, acc):
    """Scale the integer parts of a register of rows and add them to their f32 in memory; all but ``tile`` of a column.

    Args:
        scaled: (tile, t, sums) -> f32 lanes, before the activations' scale.
        d_y: the activations' scale.
    """
    value = scaled(tile, load_total(total), sums)
    store_floats(acc, fma(value, splat_floats(d_y), load_floats(acc)))


@inner
def add_column_by_halves(scaled, tile, total, sums, d_y, acc):
    """The same for sixteen rows, of eight at a time."""
    add_column(scaled, tile, total, sums, d_y, acc)
    add_column(scaled, tile + 32, total + 32, sums, d_y, acc + 32)


add_rows = add_column if SIXTEEN_ROWS else add_column_by_halves


@inner
def add_columns(scaled, totals, view, tile, c, i, acc):
    """``add_column`` for all rows of the columns from c on.

    Args:
        totals: address of what ``sum_columns`` left.
    """
    _, d, sums, _, padded = view
    for n in range(rolled(16) if SIXTEEN_COLUMNS else 4):
        at = i * padded + c + n
        add_rows(scaled, tile, totals + 64 * n, sums + 48 * at, load_f32(d + 4 * at), acc + 64 * n)

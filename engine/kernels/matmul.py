"""Tiles of 256-weight blocks times columns in q8_k form: what the K types share in prefill.

A tile (``tiles.py``) holds one block of each of sixteen rows. Its products with a column are summed
as whole numbers, groups of 16 or 32 weights times their integer scale. A ``Scaling`` makes f32 of
these sums, and adds what minima or offsets of the weights contribute: they times the sums of the
activations.

An unpacked row holds 256 bytes of weights, then 16 scales as two equal int16 each (eight are used
by the types with sub-blocks of 32), eight pairs of int16 minima, and the two f32 scales.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matmul_fours import no_fours, sixteen_weights
from engine.kernels.matmul_sixteens import SUMS_BYTES, multiply_digits, split_tile
from engine.kernels.records import SUMS_K_BYTES, SUMS_OF_32
from engine.kernels.rows import (
    broadcast_4,
    dot_pairs,
    floats_of_ints,
    load_floats,
    load_ints,
    load_pairs,
    pairs_of_bytes,
    splat_floats,
    store_floats,
)
from engine.kernels.tiles import HIGH_DIGITS, TILE_BYTES, TILE_SUMS, Tiles, bytes_at, each_columns
from engine.machine.level import FOURS_OFFSET, SIXTEEN_ROWS, SIXTEEN_TOKENS, SUMS_FOURS

ROW_SCALES = 256
ROW_MINIMA = 320
ROW_D = 352
ROW_DMIN = 356
"""Byte offsets in an unpacked row: 256 + 64 + 32 + 4 + 4 = 360 of the 384."""
_SCALES = 16 * ROW_SCALES
_MINIMA = 16 * ROW_MINIMA
_D = 16 * ROW_D
_DMIN = 16 * ROW_DMIN
"""The same in a tile, whose rows are side by side."""


@inner
def add_two(a, b, p, q):
    """Two products, then two sums: in turn, sums take the multipliers' places on processors that
    add everywhere."""
    p = vec.in_turn(p)
    q = vec.in_turn(q)
    return vec.in_turn(vec.add(a, p)), vec.in_turn(vec.add(b, q))


@inner
def add_products(tile, y, s):
    """Products of four unsigned weights of sixteen rows with four columns, added to i16x16: columns
    of the first eight rows, then of the others."""
    a0, a1, a2, a3, b0, b1, b2, b3 = s
    low = vec.load_i8x32(tile)
    high = vec.load_i8x32(tile + 32)
    y0 = vec.broadcast_4_bytes(y)
    y1 = vec.broadcast_4_bytes(y + 4)
    a0, b0 = add_two(a0, b0, vec.maddubs(low, y0), vec.maddubs(high, y0))
    a1, b1 = add_two(a1, b1, vec.maddubs(low, y1), vec.maddubs(high, y1))
    y2 = vec.broadcast_4_bytes(y + 8)
    y3 = vec.broadcast_4_bytes(y + 12)
    a2, b2 = add_two(a2, b2, vec.maddubs(low, y2), vec.maddubs(high, y2))
    a3, b3 = add_two(a3, b3, vec.maddubs(low, y3), vec.maddubs(high, y3))
    return a0, a1, a2, a3, b0, b1, b2, b3


@inner
def add_products_of_8(tile, y, s):
    """``add_products`` of eight weights: all that fits into int16 where they have six bits."""
    return add_products(tile + 64, y + 16, add_products(tile, y, s))


@inner
def add_products_of_16(tile, y, s):
    """The same of 16 weights: five bits."""
    return add_products_of_8(tile + 128, y + 32, add_products_of_8(tile, y, s))


@inner
def add_products_of_32(tile, y, s):
    """The same of 32 weights: four bits."""
    return add_products_of_16(tile + 256, y + 64, add_products_of_16(tile, y, s))


@inner
def add_products_of_two_columns(tile, y, s):
    """``add_products`` with two columns."""
    a0, a1, b0, b1 = s
    low = vec.load_i8x32(tile)
    high = vec.load_i8x32(tile + 32)
    y0 = vec.broadcast_4_bytes(y)
    y1 = vec.broadcast_4_bytes(y + 4)
    a0, b0 = add_two(a0, b0, vec.maddubs(low, y0), vec.maddubs(high, y0))
    a1, b1 = add_two(a1, b1, vec.maddubs(low, y1), vec.maddubs(high, y1))
    return a0, a1, b0, b1


@inner
def sum_two_columns(n_products, group, tile, y, totals):
    """``sum_by_words`` for two of the columns: next to the sums of four there is no register left
    for totals."""
    zero = vec.splat_i16x16(0)
    t0 = vec.splat_i32x8(0)
    t1 = vec.splat_i32x8(0)
    u0 = vec.splat_i32x8(0)
    u1 = vec.splat_i32x8(0)
    for k in range(0, 256, n_products):
        s = (zero, zero, zero, zero)
        for n in range(k, k + n_products, 4):
            s = add_products_of_two_columns(tile + 16 * n, y + 4 * n, s)
        a0, a1, b0, b1 = s
        scale = vec.load_i16x16(tile + _SCALES + 64 * (k // group))
        t0 = vec.add(t0, vec.maddwd(a0, scale))
        t1 = vec.add(t1, vec.maddwd(a1, scale))
        scale = vec.load_i16x16(tile + _SCALES + 64 * (k // group) + 32)
        u0 = vec.add(u0, vec.maddwd(b0, scale))
        u1 = vec.add(u1, vec.maddwd(b1, scale))
    vec.store_i32x8(totals, t0)
    vec.store_i32x8(totals + 32, u0)
    vec.store_i32x8(totals + 64, t1)
    vec.store_i32x8(totals + 96, u1)


@inner
def sum_by_words(n_products, group, tile, y, totals):
    """Exact integer part of one superblock, i32x8 ``[4 columns][2 halves of the rows]`` at
    ``totals``.

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
    vec.store_i32x8(totals, vec.add(vec.load_i32x8(totals), vec.mul(t0, scale)))
    vec.store_i32x8(totals + 64, vec.add(vec.load_i32x8(totals + 64), vec.mul(t1, scale)))
    vec.store_i32x8(totals + 128, vec.add(vec.load_i32x8(totals + 128), vec.mul(t2, scale)))
    vec.store_i32x8(totals + 192, vec.add(vec.load_i32x8(totals + 192), vec.mul(t3, scale)))


@inner
def sum_in_halves(n_products, group, tile, y, totals):
    """The same for processors with VNNI; as many products as share a scale fit together."""
    for k in range(8):
        vec.store_i32x8(totals + 32 * k, vec.splat_i32x8(0))
    for k in range(0, 256, group):
        low, high = no_fours()
        for n in range(0, group, 16):
            low, high = sixteen_weights(tile + 16 * (k + n), y + 4 * (k + n), (low, high))
        scales = tile + _SCALES + 64 * (k // group)
        add_four_totals(totals, low, vec.shift_lanes_right(vec.load_i32x8(scales), 16))
        add_four_totals(totals + 32, high, vec.shift_lanes_right(vec.load_i32x8(scales + 32), 16))


@inner
def sum_whole(n_products, group, tile, y, totals):
    """The same with sixteen rows in a register."""
    t0, t1, t2, t3 = no_fours()
    for k in range(0, 256, group):
        t = no_fours()
        for n in range(0, group, 16):
            t = sixteen_weights(tile + 16 * (k + n), y + 4 * (k + n), t)
        scale = vec.shift_lanes_right(vec.load_i32x16(tile + _SCALES + 64 * (k // group)), 16)
        t0 = vec.add(t0, vec.mul(t[0], scale))
        t1 = vec.add(t1, vec.mul(t[1], scale))
        t2 = vec.add(t2, vec.mul(t[2], scale))
        t3 = vec.add(t3, vec.mul(t[3], scale))
    vec.store_i32x16(totals, t0)
    vec.store_i32x16(totals + 64, t1)
    vec.store_i32x16(totals + 128, t2)
    vec.store_i32x16(totals + 192, t3)


def split_groups(group):
    """Make what multiplies the weights of a tile by their scales, one for each ``group``."""

    @inner
    def split(tile):
        split_tile(group, tile, tile + _SCALES, tile + HIGH_DIGITS)

    return split


sum_by_fours = sum_whole if SIXTEEN_ROWS else sum_in_halves


class Scaling(NamedTuple):
    """What becomes of a row's sums.

    Attributes:
        keep: (tile) -> registers that serve all columns of a tile; a lane is a row.
        scaled: (kept, t, sums) -> f32 lanes of one column before the activations' scale, of its
            int32 sums and the address of its activations' sums.
    """

    keep: Callable[..., Any]
    scaled: Callable[..., Any]


@inner
def load_four_minima(tile, p):
    """Eight minima of each row as pairs, from the p-th pair on."""
    at = tile + _MINIMA + 64 * p
    return load_pairs(at), load_pairs(at + 64), load_pairs(at + 128), load_pairs(at + 192)


@inner
def times_pair(minima, sums):
    """Two minima times the sums of their activations."""
    return dot_pairs(minima, pairs_of_bytes(broadcast_4(sums)))


@inner
def times_eight(minima, sums):
    """The same of eight."""
    m0, m1, m2, m3 = minima
    t = vec.add(times_pair(m0, sums), times_pair(m1, sums + 4))
    return vec.add(vec.add(t, times_pair(m2, sums + 8)), times_pair(m3, sums + 12))


def minima_products(group):
    """Make (load, times_sums): what loads the minima of a tile's rows, and what multiplies them
    with the sums of their activations; ``group`` weights share a minimum."""

    @inner
    def load_eight(tile):
        return load_four_minima(tile, 0)

    @inner
    def times_sums_of_32(minima, sums):
        return times_eight(minima, sums + SUMS_OF_32)

    @inner
    def load_sixteen(tile):
        return load_four_minima(tile, 0), load_four_minima(tile, 4)

    @inner
    def times_sums_of_16(minima, sums):
        first, last = minima
        return vec.add(times_eight(first, sums), times_eight(last, sums + 16))

    return (load_eight, times_sums_of_32) if group == 32 else (load_sixteen, times_sums_of_16)


def minima_scaling(group):
    """The scaling of products and minima with a scale each: d * t + dmin * minima."""
    load, times_sums = minima_products(group)

    @inner
    def keep(tile):
        return load_floats(tile + _D), load_floats(tile + _DMIN), load(tile)

    @inner
    def scaled(kept, t, sums):
        d, dmin, minima = kept
        return vec.fma(
            dmin, floats_of_ints(times_sums(minima, sums)), vec.fmul(d, floats_of_ints(t))
        )

    return Scaling(keep, scaled)


def offset_scaling(group):
    """The scaling of minima that are multiples of the scales, and so stay integers: d * (t +
    minima)."""
    load, times_sums = minima_products(group)

    @inner
    def keep(tile):
        return load_floats(tile + _D), load(tile)

    @inner
    def scaled(kept, t, sums):
        d, minima = kept
        return vec.fmul(d, floats_of_ints(vec.add(t, times_sums(minima, sums))))

    return Scaling(keep, scaled)


def plain_scaling(group):
    """The scaling of products alone, whatever the group: d * t."""

    @inner
    def keep(tile):
        return load_floats(tile + _D)

    @inner
    def scaled(d, t, sums):
        return vec.fmul(d, floats_of_ints(t))

    return Scaling(keep, scaled)


signed_scaling = offset_scaling if FOURS_OFFSET else plain_scaling
"""Of signed weights: VNNI has them too large by ``FOURS_OFFSET``."""


@inner
def add_column(keep, scaled, tile, total, sums, d_y, acc):
    """Scale the integer parts of a register of rows and add them to their f32 in memory; all but
    ``tile`` of a column.

    Args:
        d_y: the activations' scale.
    """
    value = scaled(keep(tile), load_ints(total), sums)
    store_floats(acc, vec.fma(value, splat_floats(d_y), load_floats(acc)))


@inner
def add_column_by_halves(keep, scaled, tile, total, sums, d_y, acc):
    """The same for sixteen rows, of eight at a time."""
    add_column(keep, scaled, tile, total, sums, d_y, acc)
    add_column(keep, scaled, tile + 32, total + 32, sums, d_y, acc + 32)


add_rows = add_column if SIXTEEN_ROWS else add_column_by_halves


def four_columns_k(sum_four, n_products, group, scaling):
    """A walk, four columns at a time, each tile's sums in memory in between."""
    keep, scaled = scaling

    @inner
    def columns(view, tile, y, c, i, n_live, acc, room):
        _, d, sums, _, padded = view
        sum_four(n_products, group, tile, y, room)
        for n in range(4):
            at = i * padded + c + n
            d_y = vec.load_f32(d + 4 * at)
            sums_y = sums + SUMS_K_BYTES * at
            add_rows(keep, scaled, tile, room + 64 * n, sums_y, d_y, acc + 64 * n)

    return each_columns(bytes_at, columns)


@inner
def add_two_columns(scaled, kept, totals, d_y, sums, acc, n):
    """Add columns n and n + 1 of sixteen, whose sums are in two digits."""
    for m in range(2):
        at = totals + 64 * (n + m)
        t = vec.add(load_ints(at), vec.shift_lanes_left(load_ints(at + SUMS_BYTES), 7))
        value = scaled(kept, t, sums + SUMS_K_BYTES * (n + m))
        out = acc + 64 * (n + m)
        store_floats(
            out, vec.fma(value, splat_floats(vec.load_f32(d_y + 4 * (n + m))), load_floats(out))
        )


def sixteen_columns_k(scaling):
    """A walk, sixteen columns at a time: while one tile is multiplied, the sums of the one before
    are added.

    Both take about as long, in different parts of the processor, and it does not look ahead far
    enough by itself.
    """
    keep, scaled = scaling

    @inner
    def walk(view, tiles, n_tiles, n_tokens, i, n_live, acc, room):
        _, d, sums, _, padded = view
        # at first nothing, to where no one reads
        turn = 0
        before = tiles
        at = i * padded
        to = room + 4 * SUMS_BYTES
        for c in range(0, n_tokens, 16):
            y = bytes_at(view, c, i, n_live)
            for n in range(n_tiles):
                tile = tiles + TILE_BYTES * n
                out = room + 2 * SUMS_BYTES * turn
                totals = room + 2 * SUMS_BYTES * (1 - turn)
                kept = keep(before)
                multiply_digits(
                    add_two_columns, scaled, kept, totals, d + 4 * at, sums + SUMS_K_BYTES * at, to,
                    y, tile, tile + HIGH_DIGITS, out,
                )  # fmt: skip
                turn = 1 - turn
                before = tile
                at = i * padded + c
                to = acc + TILE_SUMS * n + 64 * c
        kept = keep(before)
        totals = room + 2 * SUMS_BYTES * (1 - turn)
        for n in range(0, vec.rolled(16), 2):
            add_two_columns(scaled, kept, totals, d + 4 * at, sums + SUMS_K_BYTES * at, to, n)

    return walk


def tiles_of_bytes(n_products, group, scaling_of):
    """``tiles_k`` of weights that need four products at a time."""
    scaling = scaling_of(group)
    if SIXTEEN_TOKENS:
        return Tiles(sixteen_columns_k(scaling), split_groups(group))
    return Tiles(four_columns_k(sum_by_fours, n_products, group, scaling))


def tiles_k(n_products, group, scaling_of):
    """Tiles that meet columns in q8_k form.

    Args:
        n_products: as many as fit into int16: 8 of six bits, 16 of five, 32 of four.
        group: weights that share a scale, 16 or 32.
        scaling_of: what becomes of the sums: ``minima_scaling``, ``offset_scaling`` or
            ``plain_scaling``.
    """
    if SUMS_FOURS:
        return tiles_of_bytes(n_products, group, scaling_of)
    return Tiles(four_columns_k(sum_by_words, n_products, group, scaling_of(group)))


@inner
def store_half(w, out):
    """Write 128 weights of a row's part of a tile."""
    w0, w1, w2, w3 = w
    vec.store_i8x32(out, w0)
    vec.store_i8x32(out + 32, w1)
    vec.store_i8x32(out + 64, w2)
    vec.store_i8x32(out + 96, w3)


@inner
def store_scales_of_16(s, out):
    """Write sixteen scales of a row's part of a tile."""
    vec.store_i16x16(out + ROW_SCALES, vec.each_twice_i16x8(vec.low_half_i16(s)))
    vec.store_i16x16(out + ROW_SCALES + 32, vec.each_twice_i16x8(vec.high_half_i16(s)))

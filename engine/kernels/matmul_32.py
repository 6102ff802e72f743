"""Tiles of 32-weight blocks times columns in q8_0 form: what these types share in prefill.

A tile takes eight blocks of a row. An unpacked row holds 256 bytes of weights, then eight f32
scales and, for the types that have them, eight f32 minima.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matmul import add_products_of_16, add_products_of_32
from engine.kernels.matmul_fours import no_fours, sixteen_weights, sum_32
from engine.kernels.matmul_sixteens import SUMS_BYTES, finish_32, start_32
from engine.kernels.rows import (
    broadcast_4,
    broadcast_int,
    dot_pairs,
    floats_of_ints,
    load_floats,
    load_ints,
    pairs_of_bytes,
    splat_floats,
    splat_pair,
    store_floats,
)
from engine.kernels.tiles import TILE_BYTES, TILE_SUMS, Tiles, bytes_at, each_columns, leave_tile
from engine.machine.level import SIXTEEN_ROWS, SIXTEEN_TOKENS, SUMS_FOURS

ROW_D = 256
ROW_M = 288
"""Byte offsets in an unpacked row: 256 + 32 + 32 = 320 of the 384."""
_D = 16 * ROW_D
_M = 16 * ROW_M
"""The same in a tile, whose rows are side by side."""


@inner
def fold_words(s):
    """Neighbours of eight i16x16 added into i32x8."""
    ones = vec.splat_i16x16(1)
    a0, a1, a2, a3, b0, b1, b2, b3 = s
    low = vec.maddwd(a0, ones), vec.maddwd(a1, ones), vec.maddwd(a2, ones), vec.maddwd(a3, ones)
    return low, (
        vec.maddwd(b0, ones),
        vec.maddwd(b1, ones),
        vec.maddwd(b2, ones),
        vec.maddwd(b3, ones),
    )


@inner
def no_words():
    """Sixteen rows and four columns of zeros."""
    zero = vec.splat_i16x16(0)
    return zero, zero, zero, zero, zero, zero, zero, zero


@inner
def words_32_u4(tile, y):
    """Exact integer part of one block for four columns, four i32x8 of the first eight rows and four
    of the others: weights of four bits."""
    return fold_words(add_products_of_32(tile, y, no_words()))


@inner
def words_16_u5(tile, y):
    """The same for 16 weights of five bits."""
    return fold_words(add_products_of_16(tile, y, no_words()))


@inner
def words_32_u5(tile, y):
    """The same for weights of five bits."""
    (a0, a1, a2, a3), (b0, b1, b2, b3) = words_16_u5(tile, y)
    (c0, c1, c2, c3), (d0, d1, d2, d3) = words_16_u5(tile + 256, y + 64)
    low = vec.add(a0, c0), vec.add(a1, c1), vec.add(a2, c2), vec.add(a3, c3)
    return low, (vec.add(b0, d0), vec.add(b1, d1), vec.add(b2, d2), vec.add(b3, d3))


@inner
def fours_16(tile, y):
    """The same for processors with VNNI."""
    return sixteen_weights(tile, y, no_fours())


@inner
def store_sums_of_16(out, y):
    """Write the int32 sums of 16 activations of each of four columns, twice."""
    one = vec.splat_i8x32(1)
    t = vec.maddwd(
        vec.add(vec.maddubs(one, vec.load_i8x32(y)), vec.maddubs(one, vec.load_i8x32(y + 32))),
        vec.splat_i16x16(1),
    )
    vec.store_i32x8(out, vec.add_halves(t, t))


sum_16_u5 = fours_16 if SUMS_FOURS else words_16_u5
"""The integer part of half a block, for weights of five bits."""
sum_32_u4 = sum_32 if SUMS_FOURS else words_32_u4
"""The integer part for weights of four bits."""
sum_32_u5 = sum_32 if SUMS_FOURS else words_32_u5
"""The same for weights of five bits."""


@inner
def scaled(scales, t, sums):
    """One block of one column before the activations' scale, d * t; lanes are rows.

    Args:
        scales: address of the rows' d in the tile.
        sums: address of the activations' int32 sum.
    """
    return vec.fmul(load_floats(scales), floats_of_ints(t))


def lowered_by(offset):
    """The scaling of weights that are stored too large by an offset: sixteen columns take it off
    the tile, four off their products.
    """

    @inner
    def lower_tile(tile):
        for at in range(tile, tile + 16 * ROW_D, 32):
            vec.store_i8x32(at, vec.sub(vec.load_i8x32(at), vec.splat_i8x32(offset)))

    @inner
    def value(scales, t, sums):
        more = dot_pairs(splat_pair(-offset, 0), pairs_of_bytes(broadcast_4(sums)))
        return scaled(scales, vec.add(t, more), sums)

    return (lower_tile, scaled) if SIXTEEN_TOKENS else (leave_tile, value)


@inner
def add_minimum(scales, t, sums):
    """``scaled`` of weights with a minimum: d * t + m * sum."""
    minima = vec.fmul(load_floats(scales + _M - _D), floats_of_ints(broadcast_int(sums)))
    return vec.fma(load_floats(scales), floats_of_ints(t), minima)


WITH_MINIMUM = leave_tile, add_minimum


@inner
def add_four(value, scales, t, d_y, sums, acc):
    """Add one block of four columns of a register of rows to f32 in memory, 64 bytes apart."""
    t0, t1, t2, t3 = t
    add_one(value(scales, t0, sums), d_y, acc)
    add_one(value(scales, t1, sums + 4), d_y + 4, acc + 64)
    add_one(value(scales, t2, sums + 8), d_y + 8, acc + 128)
    add_one(value(scales, t3, sums + 12), d_y + 12, acc + 192)


@inner
def add_one(value, d_y, acc):
    """Add one column's values times the activations' scale."""
    store_floats(acc, vec.fma(value, splat_floats(vec.load_f32(d_y)), load_floats(acc)))


@inner
def add_by_halves(value, scales, t, d_y, sums, acc):
    """The same for all sixteen rows, of eight at a time."""
    low, high = t
    add_four(value, scales, low, d_y, sums, acc)
    add_four(value, scales + 32, high, d_y, sums, acc + 32)


add_tile = add_four if SIXTEEN_ROWS else add_by_halves
"""Four columns of a tile."""


@inner
def add_sixteen(value, scales, totals, d_y, sums, acc):
    """Add one block of sixteen columns, whose int32 are at ``totals``."""
    for n in range(vec.rolled(16)):
        add_one(value(scales, load_ints(totals + 64 * n), sums + 4 * n), d_y + 4 * n, acc + 64 * n)


def four_columns_32(sum_block, value):
    """A walk, four columns at a time."""

    @inner
    def columns(view, tile, y, c, i, n_live, acc, room):
        _, d, sums, _, padded = view
        for b in range(n_live // 32):
            at = 4 * ((8 * i + b) * padded + c)
            t = sum_block(tile + 512 * b, y + 128 * b)
            add_tile(value, tile + _D + 64 * b, t, d + at, sums + at, acc)

    return each_columns(bytes_at, columns)


def sixteen_columns_32(value):
    """A walk, sixteen columns at a time: while one block is multiplied, the sums of the one before
    are added."""

    @inner
    def walk(view, tiles, n_tiles, n_tokens, i, n_live, acc, room):
        _, d, sums, _, padded = view
        # at first to where no one reads
        turn = 0
        scales = tiles + _D
        at = 32 * i * padded
        to = room + 4 * SUMS_BYTES
        for c in range(0, n_tokens, 16):
            y = bytes_at(view, c, i, n_live)
            for n in range(n_tiles):
                tile = tiles + TILE_BYTES * n
                for b in range(n_live // 32):
                    start_32(y + 32 * b, n_live, tile + 512 * b)
                    add_sixteen(
                        value, scales, room + SUMS_BYTES * (1 - turn), d + at, sums + at, to
                    )
                    finish_32(y + 32 * b, n_live, tile + 512 * b, room + SUMS_BYTES * turn)
                    turn = 1 - turn
                    scales = tile + _D + 64 * b
                    at = 4 * ((8 * i + b) * padded + c)
                    to = acc + TILE_SUMS * n + 64 * c
        add_sixteen(value, scales, room + SUMS_BYTES * (1 - turn), d + at, sums + at, to)

    return walk


def tiles_32(sum_block, scaling):
    """Tiles that meet columns in q8_0 form.

    Args:
        sum_block: (tile, y) -> four i32x16, or (four i32x8, four i32x8), the two halves of the
            rows.
        scaling: (finish, value): what a tile still needs; and (scales, t, sums) -> f32 lanes of one
            column, as ``scaled``.
    """
    finish, value = scaling
    return Tiles(
        sixteen_columns_32(value) if SIXTEEN_TOKENS else four_columns_32(sum_block, value), finish
    )

"""Tiles of 32-weight blocks times columns in q8_0 form: what these types share in prefill.

A tile takes eight blocks of a row. An unpacked row holds 256 bytes of weights, then eight f32 scales and, for the types
that have them, eight f32 minima.
"""

from engine.jit import inner
from engine.kernels.matmul import eight, four
from engine.kernels.matmul_fours import no_fours, sixteen_weights, sum_32
from engine.kernels.matmul_sixteens import SUMS_BYTES, multiply_32
from engine.kernels.rows import (
    add_word_pairs,
    broadcast_4,
    broadcast_int,
    floats_of_ints,
    load_floats,
    load_ints,
    pairs_of_words,
    splat_floats,
    store_floats,
    words_of_bytes,
)
from engine.kernels.tiles import TILE_BYTES, TILE_SUMS, bytes_at, each_columns
from engine.simd import (
    add,
    add_halves,
    fma,
    fmul,
    load_f32,
    load_i8x32,
    maddubs,
    maddwd,
    rolled,
    splat_i8x32,
    splat_i16x16,
    store_i32x8,
)
from engine.simd.level import SIXTEEN_COLUMNS, SIXTEEN_ROWS, SUMS_FOURS

ROW_D, ROW_M = 256, 288
"""Byte offsets in an unpacked row: 256 + 32 + 32 = 320 of the 384."""
_D, _M = 16 * ROW_D, 16 * ROW_M


@inner
def fold(s):
    """Neighbours of eight i16x16 added into i32x8."""
    ones = splat_i16x16(1)
    a0, a1, a2, a3, b0, b1, b2, b3 = s
    low = maddwd(a0, ones), maddwd(a1, ones), maddwd(a2, ones), maddwd(a3, ones)
    return low, (maddwd(b0, ones), maddwd(b1, ones), maddwd(b2, ones), maddwd(b3, ones))


@inner
def words_of_eight(tile, y):
    """Exact integer part of one block for four columns, four i32x8 of the first eight rows and four of the others:
    weights of four bits."""
    zero = splat_i16x16(0)
    return fold(eight(tile, y, (zero, zero, zero, zero, zero, zero, zero, zero)))


@inner
def words_of_four(tile, y):
    """The same for weights of five bits."""
    zero = splat_i16x16(0)
    s = zero, zero, zero, zero, zero, zero, zero, zero
    (a0, a1, a2, a3), (b0, b1, b2, b3) = fold(four(tile, y, s))
    (c0, c1, c2, c3), (d0, d1, d2, d3) = fold(four(tile + 256, y + 64, s))
    return (add(a0, c0), add(a1, c1), add(a2, c2), add(a3, c3)), (add(b0, d0), add(b1, d1), add(b2, d2), add(b3, d3))


@inner
def words_of_sixteen(tile, y):
    """The same for 16 weights of five bits."""
    zero = splat_i16x16(0)
    return fold(four(tile, y, (zero, zero, zero, zero, zero, zero, zero, zero)))


@inner
def fours_of_sixteen(tile, y):
    """The same for processors with VNNI."""
    return sixteen_weights(tile, y, no_fours())


@inner
def store_sums_of_16(out, y):
    """Write the int32 sums of 16 activations of each of four columns, twice."""
    one = splat_i8x32(1)
    t = maddwd(add(maddubs(one, load_i8x32(y)), maddubs(one, load_i8x32(y + 32))), splat_i16x16(1))
    store_i32x8(out, add_halves(t, t))


sixteen_of_32 = fours_of_sixteen if SUMS_FOURS else words_of_sixteen
"""The integer part of half a block, for weights of five bits."""
sum_eight = sum_32 if SUMS_FOURS else words_of_eight
"""The integer part for weights of four bits."""
sum_two_fours = sum_32 if SUMS_FOURS else words_of_four
"""The same for weights of five bits."""


@inner
def add_scaled(scales, t, d_y, sums, acc):
    """Add one block of one column, d * d_y * t, to a register's f32 in memory; lanes are rows.

    Args:
        scales: address of the rows' d in the tile.
        d_y, sums: addresses of the activations' scale and int32 sum.
    """
    value = fmul(load_floats(scales), floats_of_ints(t))
    store_floats(acc, fma(value, splat_floats(load_f32(d_y)), load_floats(acc)))


@inner
def lowered(t, offset, sums):
    """Products of weights that are stored too large by an offset, without it."""
    return add(t, add_word_pairs(pairs_of_words(-offset, 0), words_of_bytes(broadcast_4(sums))))


@inner
def add_offset_1(scales, t, d_y, sums, acc):
    """The same for weights that are stored 1 too large."""
    add_scaled(scales, lowered(t, 1, sums), d_y, sums, acc)


@inner
def add_offset_8(scales, t, d_y, sums, acc):
    """The same for weights that are stored 8 too large."""
    add_scaled(scales, lowered(t, 8, sums), d_y, sums, acc)


@inner
def add_offset_12(scales, t, d_y, sums, acc):
    """The same for weights that are stored 12 too large."""
    add_scaled(
        scales, add(t, add_word_pairs(pairs_of_words(-12, 0), words_of_bytes(broadcast_4(sums)))), d_y, sums, acc
    )


@inner
def add_offset_16(scales, t, d_y, sums, acc):
    """The same for weights that are stored 16 too large."""
    add_scaled(
        scales, add(t, add_word_pairs(pairs_of_words(-16, 0), words_of_bytes(broadcast_4(sums)))), d_y, sums, acc
    )


@inner
def add_offset_128(scales, t, d_y, sums, acc):
    """The same for weights that are stored 128 too large."""
    add_scaled(
        scales, add(t, add_word_pairs(pairs_of_words(-128, 0), words_of_bytes(broadcast_4(sums)))), d_y, sums, acc
    )


@inner
def add_minimum(scales, t, d_y, sums, acc):
    """The same for weights with a minimum: d_y * (d * t + m * sum)."""
    minima = fmul(load_floats(scales + _M - _D), floats_of_ints(broadcast_int(sums)))
    value = fma(load_floats(scales), floats_of_ints(t), minima)
    store_floats(acc, fma(value, splat_floats(load_f32(d_y)), load_floats(acc)))


@inner
def add_blocks(add_block, scales, t, d_y, sums, acc):
    """``add_block`` for four columns of a register of rows; columns lie 64 bytes apart in ``acc``."""
    t0, t1, t2, t3 = t
    add_block(scales, t0, d_y, sums, acc)
    add_block(scales, t1, d_y + 4, sums + 4, acc + 64)
    add_block(scales, t2, d_y + 8, sums + 8, acc + 128)
    add_block(scales, t3, d_y + 12, sums + 12, acc + 192)


@inner
def add_by_halves(add_block, scales, t, d_y, sums, acc):
    """The same for all sixteen rows, of eight at a time."""
    low, high = t
    add_blocks(add_block, scales, low, d_y, sums, acc)
    add_blocks(add_block, scales + 32, high, d_y, sums, acc + 32)


add_tile = add_blocks if SIXTEEN_ROWS else add_by_halves
"""``add_block`` for four columns of a tile."""


@inner
def add_sixteen(add_block, scales, d_y, sums, acc, totals):
    """``add_block`` for sixteen columns whose int32 lie at ``totals``."""
    for n in range(rolled(16)):
        add_block(scales, load_ints(totals + 64 * n), d_y + 4 * n, sums + 4 * n, acc + 64 * n)


def four_columns_32(sum_block, add_block):
    """A walk, four columns at a time."""

    @inner
    def columns(view, tile, y, c, i, n_live, acc, room):
        _, d, sums, _, padded = view
        for b in range(n_live // 32):
            at = 4 * ((8 * i + b) * padded + c)
            t = sum_block(tile + 512 * b, y + 128 * b)
            add_tile(add_block, tile + _D + 64 * b, t, d + at, sums + at, acc)

    return each_columns(bytes_at, columns)


def sixteen_columns_32(add_block):
    """A walk, sixteen columns at a time: while one block is multiplied, the sums of the one before are added."""

    @inner
    def walk(view, tiles, n_tiles, n_tokens, i, n_live, acc, room):
        _, d, sums, _, padded = view
        turn, scales, at, to = 0, tiles + _D, 32 * i * padded, room + 4 * SUMS_BYTES  # at first to where nobody reads
        for c in range(0, n_tokens, 16):
            y = bytes_at(view, c, i, n_live)
            for n in range(n_tiles):
                tile = tiles + TILE_BYTES * n
                for b in range(n_live // 32):
                    out, totals = room + SUMS_BYTES * turn, room + SUMS_BYTES * (1 - turn)
                    multiply_32(
                        add_sixteen, add_block, scales, d + at, sums + at, to, totals,
                        y + 32 * b, n_live, tile + 512 * b, out,
                    )  # fmt: skip
                    turn, scales, at = 1 - turn, tile + _D + 64 * b, 4 * ((8 * i + b) * padded + c)
                    to = acc + TILE_SUMS * n + 64 * c
        add_sixteen(add_block, scales, d + at, sums + at, to, room + SUMS_BYTES * (1 - turn))

    return walk


def walk_32(sum_block, add_block):
    """A walk over columns in q8_0 form.

    Args:
        sum_block: (tile, y) -> four i32x16, or (four i32x8, four i32x8), the two halves of the rows.
        add_block: (scales, t, d_y, sums, acc) -> None, acc being an address: in registers the accumulators would push
            others out.
    """
    return sixteen_columns_32(add_block) if SIXTEEN_COLUMNS else four_columns_32(sum_block, add_block)

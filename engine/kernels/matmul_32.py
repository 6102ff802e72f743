"""Prefill of types with blocks of 32 weights: tiles times the activations of tokens in q8_0 form.

out[t] = sum over blocks of d * d_y[t] * (weights @ q_y[t]) + m * d_y[t] * sum of q_y[t].

A tile takes eight blocks of a row. An unpacked row holds 256 bytes of weights, eight f32 scales
and, for types with minima, eight f32 minima.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matmul import add_products_of_16, add_products_of_32
from engine.kernels.matmul_fours import sixteen_weights, sum_32, zero_fours
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
from engine.kernels.tiles import TILE_BYTES, TILE_SUMS, Tiles, bytes_at, keep_tile, loop_over_tokens
from engine.machine.level import SIXTEEN_ROWS, SIXTEEN_TOKENS, SUMS_FOURS

ROW_D = 256
ROW_M = 288
"""Byte offsets in an unpacked row: 256 + 32 + 32 = 320 of the 384."""
_D = 16 * ROW_D
_M = 16 * ROW_M
"""Byte offsets in a tile, whose rows are side by side."""


@inner
def fold_words(s):
    """Add neighbours of eight i16x16 into i32x8."""
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
def zero_words():
    """Return zeros for sixteen rows and four tokens, as i16x16."""
    zero = vec.splat_i16x16(0)
    return zero, zero, zero, zero, zero, zero, zero, zero


@inner
def words_32_u4(tile, y):
    """Return the exact integer part of one block of 4-bit weights for four tokens.

    It is four i32x8 of the first eight rows and four of the others.
    """
    return fold_words(add_products_of_32(tile, y, zero_words()))


@inner
def words_16_u5(tile, y):
    """Return the integer part of 16 weights of five bits for four tokens."""
    return fold_words(add_products_of_16(tile, y, zero_words()))


@inner
def words_32_u5(tile, y):
    """Return the integer part of a block of 5-bit weights for four tokens."""
    (a0, a1, a2, a3), (b0, b1, b2, b3) = words_16_u5(tile, y)
    (c0, c1, c2, c3), (d0, d1, d2, d3) = words_16_u5(tile + 256, y + 64)
    low = vec.add(a0, c0), vec.add(a1, c1), vec.add(a2, c2), vec.add(a3, c3)
    return low, (vec.add(b0, d0), vec.add(b1, d1), vec.add(b2, d2), vec.add(b3, d3))


@inner
def fours_16(tile, y):
    """Return the integer part of 16 weights for four tokens, with VNNI."""
    return sixteen_weights(tile, y, zero_fours())


@inner
def store_sums_of_16(out, y):
    """Write the int32 sums of 16 activations of each of four tokens, twice."""
    ones = vec.splat_i8x32(1)
    t = vec.maddwd(
        vec.add(vec.maddubs(ones, vec.load_i8x32(y)), vec.maddubs(ones, vec.load_i8x32(y + 32))),
        vec.splat_i16x16(1),
    )
    vec.store_i32x8(out, vec.add_halves(t, t))


sum_16_u5 = fours_16 if SUMS_FOURS else words_16_u5
"""Integer part of half a block of 5-bit weights."""
sum_32_u4 = sum_32 if SUMS_FOURS else words_32_u4
"""Integer part of a block of 4-bit weights."""
sum_32_u5 = sum_32 if SUMS_FOURS else words_32_u5
"""Integer part of a block of 5-bit weights."""


@inner
def scaled(scales, t, sums):
    """Return d * t: one block of one token before the activations' scale; lanes are rows.

    Args:
        scales: Address of the rows' d in the tile.
        sums: Address of the activations' int32 sum.
    """
    return vec.fmul(load_floats(scales), floats_of_ints(t))


def with_offset(offset):
    """Make (finish, value) for weights that are stored with an offset added.

    With sixteen tokens at a time the tile is corrected; with four, their products are.
    """

    @inner
    def lower_tile(tile):
        for address in range(tile, tile + 16 * ROW_D, 32):
            vec.store_i8x32(address, vec.sub(vec.load_i8x32(address), vec.splat_i8x32(offset)))

    @inner
    def value(scales, t, sums):
        correction = dot_pairs(splat_pair(-offset, 0), pairs_of_bytes(broadcast_4(sums)))
        return scaled(scales, vec.add(t, correction), sums)

    return (lower_tile, scaled) if SIXTEEN_TOKENS else (keep_tile, value)


@inner
def add_minimum(scales, t, sums):
    """Return d * t + m * sum, for weights with a minimum."""
    minima = vec.fmul(load_floats(scales + _M - _D), floats_of_ints(broadcast_int(sums)))
    return vec.fma(load_floats(scales), floats_of_ints(t), minima)


WITH_MINIMUM = keep_tile, add_minimum


@inner
def add_four(value, scales, t, d_y, sums, acc):
    """Add one block of four tokens to f32 in memory, 64 bytes apart; lanes are rows."""
    t0, t1, t2, t3 = t
    add_values(value(scales, t0, sums), d_y, acc)
    add_values(value(scales, t1, sums + 4), d_y + 4, acc + 64)
    add_values(value(scales, t2, sums + 8), d_y + 8, acc + 128)
    add_values(value(scales, t3, sums + 12), d_y + 12, acc + 192)


@inner
def add_values(value, d_y, acc):
    """Add one token's values times the activations' scale."""
    store_floats(acc, vec.fma(value, splat_floats(vec.load_f32(d_y)), load_floats(acc)))


@inner
def add_by_halves(value, scales, t, d_y, sums, acc):
    """Compute ``add_four`` for all sixteen rows, eight at a time."""
    low, high = t
    add_four(value, scales, low, d_y, sums, acc)
    add_four(value, scales + 32, high, d_y, sums, acc + 32)


add_tile = add_four if SIXTEEN_ROWS else add_by_halves
"""Add one block of four tokens of a tile."""


@inner
def add_sixteen(value, scales, totals, d_y, sums, acc):
    """Add one block of sixteen tokens, whose int32 sums are at ``totals``."""
    for n in range(vec.rolled(16)):
        add_values(
            value(scales, load_ints(totals + 64 * n), sums + 4 * n), d_y + 4 * n, acc + 64 * n
        )


def four_tokens_32(sum_block, value):
    """Make the function that multiplies tiles by all tokens, four at a time."""

    @inner
    def tokens(view, tile, y, c, i, n_live, acc, scratch):
        _, d, sums, _, n_padded = view
        for b in range(n_live // 32):
            offset = 4 * ((8 * i + b) * n_padded + c)
            t = sum_block(tile + 512 * b, y + 128 * b)
            add_tile(value, tile + _D + 64 * b, t, d + offset, sums + offset, acc)

    return loop_over_tokens(bytes_at, tokens)


def sixteen_tokens_32(value):
    """Make the function that multiplies tiles by all tokens, sixteen at a time.

    While one block is multiplied, the sums of the previous block are added.
    """

    @inner
    def multiply(view, tiles, n_tiles, n_tokens, i, n_live, acc, scratch):
        _, d, sums, _, n_padded = view
        # the first sums go where nothing is read
        turn = 0
        scales = tiles + _D
        offset = 32 * i * n_padded
        target = scratch + 4 * SUMS_BYTES
        for c in range(0, n_tokens, 16):
            y = bytes_at(view, c, i, n_live)
            for n in range(n_tiles):
                tile = tiles + TILE_BYTES * n
                for b in range(n_live // 32):
                    start_32(y + 32 * b, n_live, tile + 512 * b)
                    add_sixteen(
                        value,
                        scales,
                        scratch + SUMS_BYTES * (1 - turn),
                        d + offset,
                        sums + offset,
                        target,
                    )
                    finish_32(y + 32 * b, n_live, tile + 512 * b, scratch + SUMS_BYTES * turn)
                    turn = 1 - turn
                    scales = tile + _D + 64 * b
                    offset = 4 * ((8 * i + b) * n_padded + c)
                    target = acc + TILE_SUMS * n + 64 * c
        add_sixteen(
            value, scales, scratch + SUMS_BYTES * (1 - turn), d + offset, sums + offset, target
        )

    return multiply


def tiles_32(sum_block, scaling):
    """Make the tiles of a type that reads activations in q8_0 form.

    Args:
        sum_block: (tile, y) -> four i32x16, or (four i32x8, four i32x8) for the two halves of
            the rows.
        scaling: (finish, value): completes an unpacked tile; (scales, t, sums) -> f32 lanes of
            one token, as ``scaled``.
    """
    finish, value = scaling
    return Tiles(
        sixteen_tokens_32(value) if SIXTEEN_TOKENS else four_tokens_32(sum_block, value), finish
    )

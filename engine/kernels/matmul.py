"""Prefill of the K types: tiles of 256-weight blocks times the activations of tokens in q8_k form.

out[t] = d * d_y[t] * sum over groups of scale * (weights @ q_y[t]) + minima * sums of q_y[t].

A tile (``tiles.py``) holds one block of each of sixteen rows. Its products with a token are summed
as int32, groups of 16 or 32 weights times their integer scale. A ``Scaling`` turns these sums into
f32, and adds the minima or offsets of the weights times the sums of the activations.

An unpacked row holds 256 bytes of weights, 16 scales as two equal int16 each (types with sub-blocks
of 32 use eight), eight pairs of int16 minima, and the two f32 scales.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matmul_fours import sixteen_weights, zero_fours
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
from engine.kernels.tiles import (
    HIGH_DIGITS,
    TILE_BYTES,
    TILE_SUMS,
    Tiles,
    bytes_at,
    loop_over_tokens,
)
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
"""Byte offsets in a tile, whose rows are side by side."""


@inner
def add_two(a, b, p, q):
    """Return a + p and b + q, in this order.

    On processors that add in every unit, sums would otherwise take the places of multiplications.
    """
    p = vec.ordered(p)
    q = vec.ordered(q)
    return vec.ordered(vec.add(a, p)), vec.ordered(vec.add(b, q))


@inner
def add_products(tile, y, s):
    """Add the products of four unsigned weights of sixteen rows with four tokens to i16x16.

    The sums are those of four tokens for the first eight rows, then for the others.
    """
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
    """Add the products of eight weights, as many as fit into int16 with six bits."""
    return add_products(tile + 64, y + 16, add_products(tile, y, s))


@inner
def add_products_of_16(tile, y, s):
    """Add the products of 16 weights of five bits."""
    return add_products_of_8(tile + 128, y + 32, add_products_of_8(tile, y, s))


@inner
def add_products_of_32(tile, y, s):
    """Add the products of 32 weights of four bits."""
    return add_products_of_16(tile + 256, y + 64, add_products_of_16(tile, y, s))


@inner
def add_products_of_two_tokens(tile, y, s):
    """Add the products of four weights of sixteen rows with two tokens."""
    a0, a1, b0, b1 = s
    low = vec.load_i8x32(tile)
    high = vec.load_i8x32(tile + 32)
    y0 = vec.broadcast_4_bytes(y)
    y1 = vec.broadcast_4_bytes(y + 4)
    a0, b0 = add_two(a0, b0, vec.maddubs(low, y0), vec.maddubs(high, y0))
    a1, b1 = add_two(a1, b1, vec.maddubs(low, y1), vec.maddubs(high, y1))
    return a0, a1, b0, b1


@inner
def sum_two_tokens(n_products, group, tile, y, totals):
    """Compute ``sum_by_words`` for two of four tokens.

    The sums of four leave no register for totals.
    """
    zero = vec.splat_i16x16(0)
    t0 = vec.splat_i32x8(0)
    t1 = vec.splat_i32x8(0)
    u0 = vec.splat_i32x8(0)
    u1 = vec.splat_i32x8(0)
    for k in range(0, 256, n_products):
        s = (zero, zero, zero, zero)
        for n in range(k, k + n_products, 4):
            s = add_products_of_two_tokens(tile + 16 * n, y + 4 * n, s)
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
    """Compute the exact integer part of one superblock: i32x8 ``[4 tokens][2 halves of the rows]``.

    It is stored at ``totals``.

    Args:
        n_products: Products that fit into int16: 8 of six bits, 16 of five, 32 of four.
        group: Weights that share a scale, 16 or 32.
    """
    sum_two_tokens(n_products, group, tile, y, totals)
    sum_two_tokens(n_products, group, tile, y + 8, totals + 128)


@inner
def add_four_totals(totals, t, scale):
    """Add the scaled sums of four tokens to the i32x8 at an address."""
    t0, t1, t2, t3 = t
    vec.store_i32x8(totals, vec.add(vec.load_i32x8(totals), vec.mul(t0, scale)))
    vec.store_i32x8(totals + 64, vec.add(vec.load_i32x8(totals + 64), vec.mul(t1, scale)))
    vec.store_i32x8(totals + 128, vec.add(vec.load_i32x8(totals + 128), vec.mul(t2, scale)))
    vec.store_i32x8(totals + 192, vec.add(vec.load_i32x8(totals + 192), vec.mul(t3, scale)))


@inner
def sum_in_halves(n_products, group, tile, y, totals):
    """Compute ``sum_by_words`` with VNNI, which sums all products that share a scale at once."""
    for k in range(8):
        vec.store_i32x8(totals + 32 * k, vec.splat_i32x8(0))
    for k in range(0, 256, group):
        low, high = zero_fours()
        for n in range(0, group, 16):
            low, high = sixteen_weights(tile + 16 * (k + n), y + 4 * (k + n), (low, high))
        scales = tile + _SCALES + 64 * (k // group)
        add_four_totals(totals, low, vec.shift_lanes_right(vec.load_i32x8(scales), 16))
        add_four_totals(totals + 32, high, vec.shift_lanes_right(vec.load_i32x8(scales + 32), 16))


@inner
def sum_512(n_products, group, tile, y, totals):
    """Compute ``sum_by_words`` with VNNI and sixteen rows in a register."""
    t0, t1, t2, t3 = zero_fours()
    for k in range(0, 256, group):
        t = zero_fours()
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
    """Make the function that multiplies the weights of a tile by the scales of their groups."""

    @inner
    def split(tile):
        split_tile(group, tile, tile + _SCALES, tile + HIGH_DIGITS)

    return split


sum_by_fours = sum_512 if SIXTEEN_ROWS else sum_in_halves


class Scaling(NamedTuple):
    """Conversion of a row's integer sums to f32.

    Attributes:
        load: (tile) -> registers that serve all tokens; a lane is a row.
        scaled: (loaded, t, sums) -> f32 lanes of one token before the activations' scale. ``t`` are
            int32 sums, ``sums`` is the address of the sums of activations.
    """

    load: Callable[..., Any]
    scaled: Callable[..., Any]


@inner
def load_four_minima(tile, p):
    """Load eight minima of each row as pairs, from pair p on."""
    address = tile + _MINIMA + 64 * p
    return (
        load_pairs(address),
        load_pairs(address + 64),
        load_pairs(address + 128),
        load_pairs(address + 192),
    )


@inner
def times_pair(minima, sums):
    """Return two minima times the sums of their activations."""
    return dot_pairs(minima, pairs_of_bytes(broadcast_4(sums)))


@inner
def times_eight(minima, sums):
    """Return eight minima times the sums of their activations."""
    m0, m1, m2, m3 = minima
    t = vec.add(times_pair(m0, sums), times_pair(m1, sums + 4))
    return vec.add(vec.add(t, times_pair(m2, sums + 8)), times_pair(m3, sums + 12))


def minima_products(group):
    """Make (load, times_sums) for minima that ``group`` weights share.

    ``load`` loads the minima of a tile's rows, ``times_sums`` multiplies them by the sums of their
    activations.
    """

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
    """Make the scaling of types with scales for products and minima: d * t + dmin * minima."""
    load_minima, times_sums = minima_products(group)

    @inner
    def load(tile):
        return load_floats(tile + _D), load_floats(tile + _DMIN), load_minima(tile)

    @inner
    def scaled(loaded, t, sums):
        d, dmin, minima = loaded
        return vec.fma(
            dmin, floats_of_ints(times_sums(minima, sums)), vec.fmul(d, floats_of_ints(t))
        )

    return Scaling(load, scaled)


def offset_scaling(group):
    """Make the scaling of types whose minima are multiples of the scales: d * (t + minima)."""
    load_minima, times_sums = minima_products(group)

    @inner
    def load(tile):
        return load_floats(tile + _D), load_minima(tile)

    @inner
    def scaled(loaded, t, sums):
        d, minima = loaded
        return vec.fmul(d, floats_of_ints(vec.add(t, times_sums(minima, sums))))

    return Scaling(load, scaled)


def plain_scaling(group):
    """Make the scaling of types without minima, for any group: d * t."""

    @inner
    def load(tile):
        return load_floats(tile + _D)

    @inner
    def scaled(d, t, sums):
        return vec.fmul(d, floats_of_ints(t))

    return Scaling(load, scaled)


signed_scaling = offset_scaling if FOURS_OFFSET else plain_scaling
"""Scaling of signed weights; with VNNI they are stored ``FOURS_OFFSET`` too large."""


@inner
def add_token(load, scaled, tile, total, sums, d_y, acc):
    """Scale the integer parts of a register of rows and add them to their f32 in memory.

    ``tile`` is that of the rows; all other arguments are those of one token.

    Args:
        d_y: Scale of the activations.
    """
    value = scaled(load(tile), load_ints(total), sums)
    store_floats(acc, vec.fma(value, splat_floats(d_y), load_floats(acc)))


@inner
def add_token_by_halves(load, scaled, tile, total, sums, d_y, acc):
    """Compute ``add_token`` for sixteen rows, eight at a time."""
    add_token(load, scaled, tile, total, sums, d_y, acc)
    add_token(load, scaled, tile + 32, total + 32, sums, d_y, acc + 32)


add_rows = add_token if SIXTEEN_ROWS else add_token_by_halves


def four_tokens_k(sum_four, n_products, group, scaling):
    """Make the function that multiplies tiles by all tokens, four at a time.

    The sums of each tile are stored in memory in between.
    """
    load, scaled = scaling

    @inner
    def tokens(view, tile, y, c, i, n_live, acc, scratch):
        _, d, sums, _, n_padded = view
        sum_four(n_products, group, tile, y, scratch)
        for n in range(4):
            index = i * n_padded + c + n
            d_y = vec.load_f32(d + 4 * index)
            sums_y = sums + SUMS_K_BYTES * index
            add_rows(load, scaled, tile, scratch + 64 * n, sums_y, d_y, acc + 64 * n)

    return loop_over_tokens(bytes_at, tokens)


@inner
def add_two_tokens(scaled, loaded, totals, d_y, sums, acc, n):
    """Add tokens n and n + 1 of sixteen, whose sums are in two digits."""
    for m in range(2):
        total = totals + 64 * (n + m)
        t = vec.add(load_ints(total), vec.shift_lanes_left(load_ints(total + SUMS_BYTES), 7))
        value = scaled(loaded, t, sums + SUMS_K_BYTES * (n + m))
        out = acc + 64 * (n + m)
        store_floats(
            out, vec.fma(value, splat_floats(vec.load_f32(d_y + 4 * (n + m))), load_floats(out))
        )


def sixteen_tokens_k(scaling):
    """Make the function that multiplies tiles by all tokens, sixteen at a time.

    While one tile is multiplied, the sums of the previous tile are added. Both take about as long,
    in different parts of the processor, which does not look ahead far enough by itself.

    """
    load, scaled = scaling

    @inner
    def multiply(view, tiles, n_tiles, n_tokens, i, n_live, acc, scratch):
        _, d, sums, _, n_padded = view
        # the first sums are those of no tile; they go where nothing is read
        turn = 0
        previous = tiles
        index = i * n_padded
        target = scratch + 4 * SUMS_BYTES
        for c in range(0, n_tokens, 16):
            y = bytes_at(view, c, i, n_live)
            for n in range(n_tiles):
                tile = tiles + TILE_BYTES * n
                out = scratch + 2 * SUMS_BYTES * turn
                totals = scratch + 2 * SUMS_BYTES * (1 - turn)
                loaded = load(previous)
                multiply_digits(
                    add_two_tokens, scaled, loaded, totals, d + 4 * index,
                    sums + SUMS_K_BYTES * index, target,
                    y, tile, tile + HIGH_DIGITS, out,
                )  # fmt: skip
                turn = 1 - turn
                previous = tile
                index = i * n_padded + c
                target = acc + TILE_SUMS * n + 64 * c
        loaded = load(previous)
        totals = scratch + 2 * SUMS_BYTES * (1 - turn)
        for n in range(0, vec.rolled(16), 2):
            add_two_tokens(
                scaled, loaded, totals, d + 4 * index, sums + SUMS_K_BYTES * index, target, n
            )

    return multiply


def tiles_of_bytes(n_products, group, scaling_of):
    """Make ``tiles_k`` for instructions that add four products at a time."""
    scaling = scaling_of(group)
    if SIXTEEN_TOKENS:
        return Tiles(sixteen_tokens_k(scaling), split_groups(group))
    return Tiles(four_tokens_k(sum_by_fours, n_products, group, scaling))


def tiles_k(n_products, group, scaling_of):
    """Make the tiles of a type that reads activations in q8_k form.

    Args:
        n_products: Products that fit into int16: 8 of six bits, 16 of five, 32 of four.
        group: Weights that share a scale, 16 or 32.
        scaling_of: ``minima_scaling``, ``offset_scaling`` or ``plain_scaling``.
    """
    if SUMS_FOURS:
        return tiles_of_bytes(n_products, group, scaling_of)
    return Tiles(four_tokens_k(sum_by_words, n_products, group, scaling_of(group)))


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
    """Write the sixteen scales of a row's part of a tile."""
    vec.store_i16x16(out + ROW_SCALES, vec.each_twice_i16x8(vec.low_half_i16(s)))
    vec.store_i16x16(out + ROW_SCALES + 32, vec.each_twice_i16x8(vec.high_half_i16(s)))

"""Decode and small batches of types with blocks of 32 weights, a lane of 32 bits for each block.

Weights are unpacked once for all tokens, in registers that hold four bytes of each of eight blocks
of a row (``simd.turned``). Activations are in the order of ``buffers.FOURS_32``, so that products
are summed in the lane of their block, and no token needs a fold. A register of 512 bits holds two
rows, one of 256 bits one. Integers are exact and floats are added in the order of ``matvec_32``, so
the results are the same to the bit.

With 256 bits, one token alone is faster in the form of ``matvec_32``: turning costs what the fold
of one token does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matvec import (
    addresses_of,
    clear_sums,
    last_phase,
    prefetch_ahead,
    rows_with_small_batch,
    side_by_side,
    tokens_from,
)
from engine.kernels.matvec_32 import token_32
from engine.kernels.row_pairs import PairPhases, kernels_in_pairs
from engine.machine.level import SUMS_FOURS, TWO_ROWS


class LaneWeights(NamedTuple):
    """Functions that read the integers of a block.

    Attributes:
        first: Offset of the weights in a block.
        n_bytes: Bytes of a block's weights: 16 or 32.
        low, high: Four functions each: (turned, heads) -> four weights of each block, weights 0
            to 15 and 16 to 31. ``turned`` holds their four bytes, heads the first four bytes of
            each block, and the next.
        scale: (heads) -> d of each block.
        minimum: (heads) -> m of each block, or None.
        offset: Number subtracted from the weights.
        largest: Largest weight. If it is above 31, weights have a sign and are raised by
            ``RAISED``.
    """

    first: int
    n_bytes: int
    low: tuple[Callable[..., Any], ...]
    high: tuple[Callable[..., Any], ...]
    scale: Callable[..., Any]
    minimum: Callable[..., Any] | None
    offset: int
    largest: int


class Products(NamedTuple):
    """Sums of the products of eight blocks of a row.

    Attributes:
        to_unit: (weights) -> what ``add`` multiplies with each token.
        start: (int32 lanes) -> sums.
        add: (unit, y, sums) -> sums with the products of a register.
        halve: (sums) -> sums, after the first half of the products.
        total: (sums) -> int32 lanes.
    """

    to_unit: Callable[..., Any]
    start: Callable[..., Any]
    add: Callable[..., Any]
    halve: Callable[..., Any]
    total: Callable[..., Any]


@inner
def same(x):
    """Return x."""
    return x


@inner
def add_fours(w, y, sums):
    """Add four products to each lane."""
    return vec.add_fours(sums, w, y)


@inner
def start_words(lanes):
    """Return sums of zero in int16 and the lanes."""
    return vec.splat_i16x16(0), lanes


@inner
def add_words(w, y, sums):
    """Add products to int16 sums."""
    (words, lanes) = sums
    return vec.add(words, vec.maddubs(w, y)), lanes


@inner
def total_of_words(sums):
    """Return the lanes with the int16 sums added."""
    (words, lanes) = sums
    return vec.add(lanes, vec.maddwd(words, vec.splat_i16x16(1)))


@inner
def fold_words(sums):
    """Add the int16 sums to the lanes, and clear them."""
    return vec.splat_i16x16(0), total_of_words(sums)


@inner
def with_magnitudes(w):
    """Return weights and their magnitudes."""
    return w, vec.abs_i8(w)


@inner
def add_signed(unit, y, sums):
    """Add products of signed weights, whose signs move to the activations."""
    (w, magnitudes) = unit
    products = vec.maddubs(magnitudes, vec.with_sign_of(y, w))
    return vec.add(sums, vec.maddwd(products, vec.splat_i16x16(1)))


FOURS = Products(same, same, add_fours, same, same)
"""Sums with VNNI, of weights without a sign."""
WORDS_OF_4_BITS = Products(same, start_words, add_words, same, total_of_words)
WORDS_OF_5_BITS = Products(same, start_words, add_words, fold_words, total_of_words)
"""Sums in int16, into which all products of a lane fit, or half of them."""
SIGNED = Products(with_magnitudes, same, add_signed, same, same)


class Width(NamedTuple):
    """Operations on registers of one row or two.

    Attributes:
        load_16, load_32: (blocks, first, block_bytes) -> eight registers: sixteen bytes of eight
            blocks from ``first`` on, turned, twice; and 32 bytes, turned.
        load_heads: (blocks, block_bytes) -> the first four bytes of each block, and the next.
        load_q, load_floats, load_sums: (address) -> activations of eight blocks, eight f32, and
            eight sums as f32, for each row.
        offset_sums: (offset, address) -> eight sums times -offset, for each row.
        zero: () -> zeros like these.
    """

    load_16: Callable[..., Any]
    load_32: Callable[..., Any]
    load_heads: Callable[..., Any]
    load_q: Callable[..., Any]
    load_floats: Callable[..., Any]
    load_sums: Callable[..., Any]
    offset_sums: Callable[..., Any]
    zero: Callable[..., Any]


@inner
def quarters_of_one_row(block, block_bytes):
    """Load sixteen bytes of eight blocks of a row, in pairs that are four apart."""
    fifth = block + 4 * block_bytes
    second = block_bytes
    third = 2 * block_bytes
    fourth = 3 * block_bytes
    return (
        vec.load_two_i8x16(block, fifth),
        vec.load_two_i8x16(block + second, fifth + second),
        vec.load_two_i8x16(block + third, fifth + third),
        vec.load_two_i8x16(block + fourth, fifth + fourth),
    )


@inner
def load_16_of_one_row(block, first, block_bytes):
    """Load sixteen bytes of eight blocks, turned, twice."""
    turned = vec.turned(*quarters_of_one_row(block + first, block_bytes))
    return turned + turned


@inner
def load_32_of_one_row(block, first, block_bytes):
    """Load 32 bytes of eight blocks, turned."""
    low = vec.turned(*quarters_of_one_row(block + first, block_bytes))
    return low + vec.turned(*quarters_of_one_row(block + first + 16, block_bytes))


@inner
def load_heads_of_one_row(block, block_bytes):
    """Load the first eight bytes of eight blocks, turned."""
    return vec.turned_heads(*quarters_of_one_row(block, block_bytes))


@inner
def sums_of_one_row(address):
    """Return eight sums as f32."""
    return vec.f32_of_i32x8(vec.load_i32x8(address))


@inner
def offset_sums_of_one_row(offset, address):
    """Return eight sums times -offset."""
    return vec.maddwd(vec.pairs_i16(-offset, 0), vec.load_i16x16(address))


@inner
def zero_of_one_row():
    """Return zeros."""
    return vec.splat_i32x8(0)


@inner
def zero_of_two_rows():
    """Return zeros."""
    return vec.splat_i32x16(0)


@inner
def quarters_of_two_rows(blocks, offset, block_bytes):
    """Load sixteen bytes of eight blocks of two rows, in pairs that are four apart."""
    first, second = blocks
    a = first + offset
    b = second + offset
    distance = 4 * block_bytes
    a0 = vec.load_four_i8x16(a, a + distance, b, b + distance)
    a += block_bytes
    b += block_bytes
    a1 = vec.load_four_i8x16(a, a + distance, b, b + distance)
    a += block_bytes
    b += block_bytes
    a2 = vec.load_four_i8x16(a, a + distance, b, b + distance)
    a += block_bytes
    b += block_bytes
    return a0, a1, a2, vec.load_four_i8x16(a, a + distance, b, b + distance)


@inner
def load_16_of_two_rows(blocks, first, block_bytes):
    """Load sixteen bytes of eight blocks of two rows, turned, twice."""
    turned = vec.turned(*quarters_of_two_rows(blocks, first, block_bytes))
    return turned + turned


@inner
def load_32_of_two_rows(blocks, first, block_bytes):
    """Load 32 bytes of eight blocks of two rows, turned."""
    row, second_row = blocks
    a = row + first
    b = second_row + first
    return vec.turned_of_32(
        vec.load_two_i8x32(a, b),
        vec.load_two_i8x32(a + block_bytes, b + block_bytes),
        vec.load_two_i8x32(a + 2 * block_bytes, b + 2 * block_bytes),
        vec.load_two_i8x32(a + 3 * block_bytes, b + 3 * block_bytes),
        vec.load_two_i8x32(a + 4 * block_bytes, b + 4 * block_bytes),
        vec.load_two_i8x32(a + 5 * block_bytes, b + 5 * block_bytes),
        vec.load_two_i8x32(a + 6 * block_bytes, b + 6 * block_bytes),
        vec.load_two_i8x32(a + 7 * block_bytes, b + 7 * block_bytes),
    )


@inner
def load_heads_of_two_rows(blocks, block_bytes):
    """Load the first eight bytes of eight blocks of two rows, turned."""
    return vec.turned_heads(*quarters_of_two_rows(blocks, 0, block_bytes))


def load_words_of_two_rows(block_bytes):
    """Make the function that loads only the first two bytes of eight blocks of two rows.

    Args:
        block_bytes: At most 18.
    """
    strided_words = vec.strided_words_of_two(block_bytes)

    @inner
    def load_words(blocks, block_bytes):
        (first, second) = blocks
        heads = strided_words(first, second)
        return heads, heads

    return load_words


@inner
def sums_of_two_rows(address):
    """Return eight sums as f32, in both halves."""
    return vec.f32_of_i32x16(vec.as_i32x16(vec.broadcast_32_bytes(address)))


@inner
def offset_sums_of_two_rows(offset, address):
    """Return eight sums times -offset, in both halves."""
    sums = vec.as_i16x32(vec.broadcast_32_bytes(address))
    return vec.maddwd_512(vec.pairs_i16x32(-offset, 0), sums)


WIDTH_OF_ONE = Width(
    load_16_of_one_row,
    load_32_of_one_row,
    load_heads_of_one_row,
    vec.load_i8x32,
    vec.load_f32x8,
    sums_of_one_row,
    offset_sums_of_one_row,
    zero_of_one_row,
)
WIDTH_OF_TWO = Width(
    load_16_of_two_rows,
    load_32_of_two_rows,
    load_heads_of_two_rows,
    vec.broadcast_32_bytes,
    vec.broadcast_f32x8,
    sums_of_two_rows,
    offset_sums_of_two_rows,
    zero_of_two_rows,
)


def row_adders(weights, block_bytes, width, products):
    """Make the function that makes functions: n -> the function that adds eight blocks of a row or
    two with n tokens, (blocks, i, tokens, floats) -> floats, f32 lanes of each token."""
    load_16, load_32, load_heads, load_q, load_floats, load_sums, offset_sums, zero = width
    load_turned = load_32 if weights.n_bytes == 32 else load_16
    to_unit, start_sums, add_products, halve_sums, total = products
    low0, low1, low2, low3 = weights.low
    high0, high1, high2, high3 = weights.high
    scale = weights.scale
    minimum = weights.minimum or scale
    has_minimum = weights.minimum is not None
    has_offset = weights.offset != 0
    must_halve = halve_sums is not same
    offset = weights.offset
    first = weights.first

    @inner
    def start_token(i, token, floats):
        if has_offset:
            lanes = offset_sums(offset, token[3] + 32 * i)
        else:
            lanes = zero()
        return start_sums(lanes), floats

    @inner
    def add_unit(shared, token, state):
        (unit, at) = shared
        (sums, floats) = state
        return add_products(unit, load_q(token[1] + at), sums), floats

    @inner
    def halve_token(shared, token, state):
        (sums, floats) = state
        return halve_sums(sums), floats

    @inner
    def scale_token(shared, token, state):
        (d, m, i) = shared
        (sums, floats) = state
        d_y = load_floats(token[2] + 32 * i)
        floats = vec.fma(vec.fmul(d, d_y), vec.f32_of_i32(total(sums)), floats)
        if has_minimum:
            floats = vec.fma(vec.fmul(m, d_y), load_sums(token[3] + 32 * i), floats)
        return floats

    def row_adder(n):
        start = side_by_side(n, start_token)
        add = side_by_side(n, add_unit)
        halve = side_by_side(n, halve_token)
        finish = side_by_side(n, scale_token)

        @inner
        def add_row(blocks, i, tokens, floats):
            heads = load_heads(blocks, block_bytes)
            (w0, w1, w2, w3, w4, w5, w6, w7) = load_turned(blocks, first, block_bytes)
            at = 256 * i
            state = start(i, tokens, floats)
            state = add((to_unit(low0(w0, heads)), at), tokens, state)
            state = add((to_unit(low1(w1, heads)), at + 32), tokens, state)
            state = add((to_unit(low2(w2, heads)), at + 64), tokens, state)
            state = add((to_unit(low3(w3, heads)), at + 96), tokens, state)
            if must_halve:
                state = halve(i, tokens, state)
            state = add((to_unit(high0(w4, heads)), at + 128), tokens, state)
            state = add((to_unit(high1(w5, heads)), at + 160), tokens, state)
            state = add((to_unit(high2(w6, heads)), at + 192), tokens, state)
            state = add((to_unit(high3(w7, heads)), at + 224), tokens, state)
            return finish((scale(heads), minimum(heads), i), tokens, state)

        return add_row

    return row_adder


@inner
def clear_two_rows(shared, token, state):
    """Return sums of zero: a register for two rows."""
    return vec.splat_f32x16(0.0)


@inner
def totals_of_halves(floats):
    """Return the sum of each half."""
    return vec.sum_f32x8(vec.low_half_f32x16(floats)), vec.sum_f32x8(vec.high_half_f32x16(floats))


def two_rows_at_once(add_rows):
    """Make the function that adds a chunk of both rows in registers of two rows."""

    @inner
    def add_chunk(first, second, i, scratch, tokens, state):
        return add_rows((first, second), i, tokens, state)

    return add_chunk


@inner
def first_f16(heads):
    """Return the first f16 of each block."""
    return vec.f32_of_low_f16(heads[0])


@inner
def second_f16(heads):
    """Return the second f16 of each block."""
    return vec.f32_of_high_f16(heads[0])


RAISED = 128 if SUMS_FOURS else 0
"""Number added to signed weights, since VNNI multiplies unsigned bytes."""


def products_of(weights):
    """Return the form of a type's sums on this processor."""
    if SUMS_FOURS:
        return FOURS
    if weights.largest > 31:
        return SIGNED
    if weights.largest < 16:
        return WORDS_OF_4_BITS
    return WORDS_OF_5_BITS


finish_token = last_phase(vec.sum_f32x8)


def row_with_tokens(n, add_row, chunk_bytes):
    """Make the function that computes a row with n tokens: (op, c, row, scratch) -> None."""
    find_tokens = tokens_from(n, token_32)
    clear = side_by_side(n, clear_sums)
    finish_row = side_by_side(n, finish_token)

    @inner
    def row_of_n(op, c, row, scratch):
        tokens = find_tokens(op, c)
        floats = clear(op, tokens, tokens)
        block, last, _, n_chunks, ahead = addresses_of(op, row, chunk_bytes)
        for i in range(n_chunks):
            prefetch_ahead(block, ahead, chunk_bytes)
            floats = add_row(min(block, last), i, tokens, floats)
            block += chunk_bytes
        finish_row((op, row), tokens, floats)

    return row_of_n


def rows_in_block_lanes(weights, block_bytes):
    """Make ``small_batch`` for rows of at least 256 weights, and ``matvec`` with 512 bits.

    Returns:
        (matvec or None, small_batch).
    """
    products = products_of(weights)
    chunk_bytes = 8 * block_bytes
    if TWO_ROWS and SUMS_FOURS:
        width = WIDTH_OF_TWO
        if block_bytes <= 18:
            width = width._replace(load_heads=load_words_of_two_rows(block_bytes))
        row_adder = row_adders(weights, block_bytes, width, products)

        def chunk(n):
            return two_rows_at_once(row_adder(n))

        phases = PairPhases(
            token_32, clear_two_rows, chunk, totals_of_halves, chunk_bytes, may_overlap=True
        )
        return kernels_in_pairs(phases)
    row_adder = row_adders(weights, block_bytes, WIDTH_OF_ONE, products)
    rows = [row_with_tokens(n, row_adder(n), chunk_bytes) for n in (1, 2, 3, 4)]
    return None, rows_with_small_batch(*rows)

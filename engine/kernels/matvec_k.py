"""Rows of 256-weight blocks times one column of activations in q8_k form, or a few: decode of the K
types."""

from collections.abc import Callable
from typing import Any, NamedTuple

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matvec import (
    Phases,
    ask_ahead,
    claim,
    columns_from,
    find_citations,
    finish,
    leaving,
    row_kernels,
    scratch_of,
    side_by_side,
)
from engine.kernels.records import MATMUL as F
from engine.kernels.records import SUMS_K_BYTES


@inner
def four_groups(weights, y, s0, s1, s2, s3):
    """Integer contribution of 128 weights with eight scales; a scale register holds two, one in
    each half.

    Args:
        weights: four i8x32, unsigned, at most 7 bits.
    """
    w0, w1, w2, w3 = weights
    return vec.add(
        vec.add(
            vec.maddwd(s0, vec.maddubs(w0, vec.load_i8x32(y))),
            vec.maddwd(s1, vec.maddubs(w1, vec.load_i8x32(y + 32))),
        ),
        vec.add(
            vec.maddwd(s2, vec.maddubs(w2, vec.load_i8x32(y + 64))),
            vec.maddwd(s3, vec.maddubs(w3, vec.load_i8x32(y + 96))),
        ),
    )


@inner
def sixteen_groups(half, block, y, s):
    """The same of 256 weights with sixteen scales, the even ones in the lower half.

    Args:
        half: (block, n) -> the weights of one half of a block.
    """
    low = four_groups(
        half(block, 0),
        y,
        vec.half_lane0(s),
        vec.half_lane1(s),
        vec.half_lane2(s),
        vec.half_lane3(s),
    )
    vec.keep_order()
    high = four_groups(
        half(block, 1),
        y + 128,
        vec.half_lane4(s),
        vec.half_lane5(s),
        vec.half_lane6(s),
        vec.half_lane7(s),
    )
    return vec.add(low, high)


@inner
def two_bit_fields(at):
    """Four registers of 32 bytes, of bits 0-1, 2-3, 4-5 and 6-7 of those at an address."""
    both = vec.load_i8x32(at)
    mask = vec.splat_i8x32(3)
    return (
        vec.and_(both, mask),
        vec.and_(vec.shift_right(both, 2), mask),
        vec.and_(vec.shift_right(both, 4), mask),
        vec.and_(vec.shift_right(both, 6), mask),
    )


def columns_of_k(y_bytes):
    """Make what finds column c of q8_k activations: (c, q, d, sums).

    Args:
        y_bytes: of 256 activations.
    """

    @inner
    def column(op, c):
        group = c * (vec.load_i64(op + F.n_cols) // 256)
        q, d, sums = vec.load_words(op, (F.q, F.d, F.sums))
        return c, q + y_bytes * group, d + 4 * group, sums + SUMS_K_BYTES * group

    return column


columns_k = columns_of_k(256)


@inner
def clear_k(shared, column, state):
    """A phase: no products and no minima."""
    return vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)


@inner
def difference(state):
    """Sum of products less minima."""
    acc, acc_min = state
    return vec.sum_f32x8(vec.fsub(acc, acc_min))


leave_k = leaving(difference)


def phases_k(dot, block_bytes, y_bytes=256):
    """Make the phases of a K type.

    Args:
        dot: (block, y, d_y, sums, acc, acc_min) -> (acc, acc_min), f32x8; the result is their
            difference.
        y_bytes: of 256 activations in the order that ``dot`` wants.
    """

    @inner
    def add(shared, column, state):
        (block, i) = shared
        (_, q, d, sums) = column
        (acc, acc_min) = state
        return dot(
            block, q + y_bytes * i, vec.load_f32(d + 4 * i), sums + SUMS_K_BYTES * i, acc, acc_min
        )

    return Phases(columns_of_k(y_bytes), clear_k, add, leave_k, block_bytes, may_overlap=False)


def row_kernels_k(dot, block_bytes, y_bytes=256):
    """Make ``matvec`` and ``small_batch`` of the same."""
    return row_kernels(phases_k(dot, block_bytes, y_bytes))


def rows_in_twos_k(dots, one, block_bytes):
    """Make ``matvec``: all rows with one column, two or four at a time.

    Args:
        dots: (block, other, y, d_y, sums, acc, other_acc, acc_min, room) -> (acc, other_acc,
            acc_min); acc_min holds the first row's minima in its lower half, the other's in its
            upper half. Room is an address of 64 bytes.
        one: computes the last row where there is no other.
    """

    @inner
    def finish_two(op, row, other, a, b, low):
        finish(op, 0, row, vec.sum_f32x8(vec.fsub(a, vec.low_half_f32(low))))
        finish(op, 0, other, vec.sum_f32x8(vec.fsub(b, vec.high_half_f32(low))))

    @inner
    def two_rows(op, row, room):
        # Neighbours: the scales before their weights are unpacked in one register, and memory is
        # asked for both in the order of addresses: two streams of a row each were half as fast.
        _, q, d, sums = columns_k(op, 0)
        a = vec.splat_f32x8(0.0)
        b = vec.splat_f32x8(0.0)
        low = vec.splat_f32x8(0.0)
        weights, row_bytes, ahead, n_cols = vec.load_words(
            op, (F.weights, F.row_bytes, F.ahead, F.n_cols)
        )
        block = weights + row * row_bytes
        other = weights + (row + 1) * row_bytes
        asked = other
        for i in range(n_cols // 256):
            ask_ahead(asked, ahead, 2 * block_bytes)
            asked += 2 * block_bytes
            y = q + 256 * i
            d_y = vec.load_f32(d + 4 * i)
            sums_y = sums + SUMS_K_BYTES * i
            a, b, low = dots(block, other, y, d_y, sums_y, a, b, low, room)
            block = block + block_bytes
            other = other + block_bytes
        finish_two(op, row, row + 1, a, b, low)

    @inner
    def two_pairs(op, row, apart, room):
        _, q, d, sums = columns_k(op, 0)
        a0 = vec.splat_f32x8(0.0)
        a1 = vec.splat_f32x8(0.0)
        a2 = vec.splat_f32x8(0.0)
        a3 = vec.splat_f32x8(0.0)
        low01 = vec.splat_f32x8(0.0)
        low23 = vec.splat_f32x8(0.0)
        weights, row_bytes, ahead, n_cols = vec.load_words(
            op, (F.weights, F.row_bytes, F.ahead, F.n_cols)
        )
        block = weights + row * row_bytes
        far = apart * row_bytes
        for i in range(n_cols // 256):
            y = q + 256 * i
            d_y = vec.load_f32(d + 4 * i)
            sums_y = sums + SUMS_K_BYTES * i
            ask_ahead(block, ahead, block_bytes)
            ask_ahead(block + far, ahead, block_bytes)
            a0, a1, low01 = dots(block, block + far, y, d_y, sums_y, a0, a1, low01, room)
            ask_ahead(block + 2 * far, ahead, block_bytes)
            ask_ahead(block + 3 * far, ahead, block_bytes)
            a2, a3, low23 = dots(
                block + 2 * far, block + 3 * far, y, d_y, sums_y, a2, a3, low23, room + 64
            )
            block += block_bytes
        finish_two(op, row, row + apart, a0, a1, low01)
        finish_two(op, row + 2 * apart, row + 3 * apart, a2, a3, low23)

    def matvec(op, thread, n_threads):
        room = scratch_of(op, thread)
        turn = 0
        while turn < n_threads:
            apart, first, last, turn = claim(op, thread, n_threads, turn)
            for row in range(first, first + apart):
                two_pairs(op, row, apart, room)
            first += 4 * apart
            for row in range(first, last - 1, 2):
                two_rows(op, row, room)
            if (last - first) & 1:
                one(op, 0, last - 1, room)

    return matvec


class UnitPhases(NamedTuple):
    """What is done for a row in blocks of 256 weights, each of which is taken apart into units.

    Attributes:
        clear: before all blocks, shares op.
        start: before a block, shares (the block, what ``prepare`` returned, the block's number).
        add: shares (a unit, the offset of its activations).
        fold: after a block, shares what ``start`` does.
        leave: after all blocks, shares (op, row).
    """

    clear: Callable[..., Any]
    start: Callable[..., Any]
    add: Callable[..., Any]
    fold: Callable[..., Any]
    leave: Callable[..., Any]


def row_of_units(n, phases, first, prepare, unit, unit_size, block_bytes):
    """Make what computes a row with n columns: each unit of weights is unpacked once and meets all
    columns.

    Column by column a whole block would wait in registers, of which there are too few; and a loop
    without turns would be scheduled like that again.

    Args:
        phases: the ``UnitPhases``.
        first: (block, room) -> None, before the first block.
        prepare: (block, room, i, n_blocks) -> address, before each block.
        unit: (block, prepared, j) -> what all columns meet of ``unit_size`` weights.
    """
    begin = columns_from(n, columns_k)
    (clear, start, add, fold, leave) = (side_by_side(n, one) for one in phases)
    n_units = 256 // unit_size
    is_rolled = n > 1

    @inner
    def row_with_columns(op, c, row, room):
        columns = begin(op, c)
        state = clear(op, columns, columns)
        block, _, _, n_blocks, ahead = find_citations(op, row, block_bytes)
        first(block, room)
        for i in range(n_blocks):
            ask_ahead(block, ahead, block_bytes)
            prepared = prepare(block, room, i, n_blocks)
            vec.written()
            state = start((block, prepared, i), columns, state)
            for j in range(vec.rolled(n_units) if is_rolled else n_units):
                state = add((unit(block, prepared, j), 256 * i + unit_size * j), columns, state)
            state = fold((block, prepared, i), columns, state)
            block += block_bytes
        leave((op, row), columns, state)

    return row_with_columns

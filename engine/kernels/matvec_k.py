"""Decode of the K types: rows of 256-weight blocks times activations in q8_k form.

out[t] = sum over blocks of d * d_y[t] * (scales * weights @ q_y[t]) - minima, f32; see ``matvec``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matvec import (
    Phases,
    addresses_of,
    claim,
    last_phase,
    prefetch_ahead,
    row_kernels,
    scratch_of,
    side_by_side,
    store_result,
    tokens_from,
)
from engine.kernels.records import MATMUL as F
from engine.kernels.records import SUMS_K_BYTES


@inner
def four_groups(weights, y, s0, s1, s2, s3):
    """Return the integer contribution of 128 weights with eight scales.

    A scale register holds two scales, one in each half.

    Args:
        weights: Four i8x32, unsigned, at most 7 bits.
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
    """Return the integer contribution of 256 weights with sixteen scales.

    The even scales are in the lower half.

    Args:
        half: (block, n) -> weights of one half of a block.
    """
    low = four_groups(
        half(block, 0),
        y,
        vec.half_lane0(s),
        vec.half_lane1(s),
        vec.half_lane2(s),
        vec.half_lane3(s),
    )
    vec.load_barrier()
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
def two_bit_fields(address):
    """Return bits 0-1, 2-3, 4-5 and 6-7 of 32 bytes at an address, in four registers."""
    fields = vec.load_i8x32(address)
    mask = vec.splat_i8x32(3)
    return (
        vec.and_(fields, mask),
        vec.and_(vec.shift_right(fields, 2), mask),
        vec.and_(vec.shift_right(fields, 4), mask),
        vec.and_(vec.shift_right(fields, 6), mask),
    )


def token_of_k(y_bytes):
    """Make the function that finds token c in q8_k form: (c, q, d, sums).

    Args:
        y_bytes: Bytes of 256 activations.
    """

    @inner
    def token(op, c):
        group = c * (vec.load_i64(op + F.n_cols) // 256)
        q, d, sums = vec.load_words(op, (F.q, F.d, F.sums))
        return c, q + y_bytes * group, d + 4 * group, sums + SUMS_K_BYTES * group

    return token


token_k = token_of_k(256)


@inner
def clear_k(shared, token, state):
    """Return a cleared state: no products and no minima."""
    return vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)


@inner
def difference(state):
    """Return the sum of the products minus the minima."""
    acc, acc_min = state
    return vec.sum_f32x8(vec.fsub(acc, acc_min))


finish_k = last_phase(difference)


def phases_k(dot, block_bytes, y_bytes=256):
    """Make the phases of a K type.

    Args:
        dot: (block, y, d_y, sums, acc, acc_min) -> (acc, acc_min), f32x8; the result is their
            difference.
        y_bytes: Bytes of 256 activations in the order that ``dot`` reads.
    """

    @inner
    def add(shared, token, state):
        (block, i) = shared
        (_, q, d, sums) = token
        (acc, acc_min) = state
        return dot(
            block, q + y_bytes * i, vec.load_f32(d + 4 * i), sums + SUMS_K_BYTES * i, acc, acc_min
        )

    return Phases(token_of_k(y_bytes), clear_k, add, finish_k, block_bytes, may_overlap=False)


def row_kernels_k(dot, block_bytes, y_bytes=256):
    """Make ``matvec`` and ``small_batch`` of a K type; arguments as in ``phases_k``."""
    return row_kernels(phases_k(dot, block_bytes, y_bytes), has_three=True)


def rows_in_twos_k(dots, one_row, block_bytes):
    """Make ``matvec``: all rows with one token, two or four at a time.

    Args:
        dots: (block, other, y, d_y, sums, acc, other_acc, acc_min, scratch) -> (acc, other_acc,
            acc_min). acc_min holds the first row's minima in its lower half, the other's in its
            upper half. ``scratch`` is an address of 64 bytes.
        one_row: Computes the last row if there is no other.
    """

    @inner
    def finish_two(op, row, second, a, b, acc_min):
        store_result(op, 0, row, vec.sum_f32x8(vec.fsub(a, vec.low_half_f32(acc_min))))
        store_result(op, 0, second, vec.sum_f32x8(vec.fsub(b, vec.high_half_f32(acc_min))))

    @inner
    def two_rows(op, row, scratch):
        # The rows are neighbours, so their scales are unpacked in one register, and memory is
        # prefetched in the order of addresses. Two streams of a row each were half as fast.
        _, q, d, sums = token_k(op, 0)
        a = vec.splat_f32x8(0.0)
        b = vec.splat_f32x8(0.0)
        acc_min = vec.splat_f32x8(0.0)
        weights, row_bytes, ahead, n_cols = vec.load_words(
            op, (F.weights, F.row_bytes, F.ahead, F.n_cols)
        )
        block = weights + row * row_bytes
        second = weights + (row + 1) * row_bytes
        prefetch_address = second
        for i in range(n_cols // 256):
            prefetch_ahead(prefetch_address, ahead, 2 * block_bytes)
            prefetch_address += 2 * block_bytes
            y = q + 256 * i
            d_y = vec.load_f32(d + 4 * i)
            sums_y = sums + SUMS_K_BYTES * i
            a, b, acc_min = dots(block, second, y, d_y, sums_y, a, b, acc_min, scratch)
            block = block + block_bytes
            second = second + block_bytes
        finish_two(op, row, row + 1, a, b, acc_min)

    @inner
    def two_pairs(op, row, stride, scratch):
        _, q, d, sums = token_k(op, 0)
        a0 = vec.splat_f32x8(0.0)
        a1 = vec.splat_f32x8(0.0)
        a2 = vec.splat_f32x8(0.0)
        a3 = vec.splat_f32x8(0.0)
        acc_min01 = vec.splat_f32x8(0.0)
        acc_min23 = vec.splat_f32x8(0.0)
        weights, row_bytes, ahead, n_cols = vec.load_words(
            op, (F.weights, F.row_bytes, F.ahead, F.n_cols)
        )
        block = weights + row * row_bytes
        distance = stride * row_bytes
        for i in range(n_cols // 256):
            y = q + 256 * i
            d_y = vec.load_f32(d + 4 * i)
            sums_y = sums + SUMS_K_BYTES * i
            prefetch_ahead(block, ahead, block_bytes)
            prefetch_ahead(block + distance, ahead, block_bytes)
            a0, a1, acc_min01 = dots(
                block, block + distance, y, d_y, sums_y, a0, a1, acc_min01, scratch
            )
            prefetch_ahead(block + 2 * distance, ahead, block_bytes)
            prefetch_ahead(block + 3 * distance, ahead, block_bytes)
            a2, a3, acc_min23 = dots(
                block + 2 * distance,
                block + 3 * distance,
                y,
                d_y,
                sums_y,
                a2,
                a3,
                acc_min23,
                scratch + 64,
            )
            block += block_bytes
        finish_two(op, row, row + stride, a0, a1, acc_min01)
        finish_two(op, row + 2 * stride, row + 3 * stride, a2, a3, acc_min23)

    def matvec(op, thread, n_threads):
        scratch = scratch_of(op, thread)
        turn = 0
        while turn < n_threads:
            stride, first, last, turn = claim(op, thread, n_threads, turn)
            for row in range(first, first + stride):
                two_pairs(op, row, stride, scratch)
            first += 4 * stride
            for row in range(first, last - 1, 2):
                two_rows(op, row, scratch)
            if (last - first) & 1:
                one_row(op, 0, last - 1, scratch)

    return matvec


class UnitPhases(NamedTuple):
    """Computation of a row in blocks of 256 weights, each of which is divided into units.

    Attributes:
        clear: Phase before all blocks; shares op.
        start: Phase before a block; shares (the block, the result of ``prepare``, the block's
            number).
        add: Phase of a unit; shares (the unit, the offset of its activations).
        fold: Phase after a block; shares what ``start`` does.
        finish_row: Phase after all blocks; shares (op, row).
    """

    clear: Callable[..., Any]
    start: Callable[..., Any]
    add: Callable[..., Any]
    fold: Callable[..., Any]
    finish_row: Callable[..., Any]


def row_of_units(n, phases, first, prepare, unit, unit_size, block_bytes):
    """Make the function that computes a row with n tokens: each unit is unpacked once for all
    tokens.

    Token by token, a whole block would wait in registers, of which there are too few. An unrolled
    loop would be scheduled like that again.


    Args:
        phases: ``UnitPhases`` of the type.
        first: (block, scratch) -> None, before the first block.
        prepare: (block, scratch, i, n_blocks) -> address, before each block.
        unit: (block, prepared, j) -> ``unit_size`` weights that meet all tokens.
    """
    find_tokens = tokens_from(n, token_k)
    (clear, start, add, fold, finish_row) = (side_by_side(n, phase) for phase in phases)
    n_units = 256 // unit_size
    is_rolled = n > 1

    @inner
    def row_with_tokens(op, c, row, scratch):
        tokens = find_tokens(op, c)
        state = clear(op, tokens, tokens)
        block, _, _, n_blocks, ahead = addresses_of(op, row, block_bytes)
        first(block, scratch)
        for i in range(n_blocks):
            prefetch_ahead(block, ahead, block_bytes)
            prepared = prepare(block, scratch, i, n_blocks)
            vec.store_barrier()
            state = start((block, prepared, i), tokens, state)
            for j in range(vec.rolled(n_units) if is_rolled else n_units):
                state = add((unit(block, prepared, j), 256 * i + unit_size * j), tokens, state)
            state = fold((block, prepared, i), tokens, state)
            block += block_bytes
        finish_row((op, row), tokens, state)

    return row_with_tokens

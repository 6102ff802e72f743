"""Decode and small batches, two rows at once.

Where registers have 512 bits, each half belongs to a row; elsewhere one row follows the other in
each chunk. Either way, the weights of both rows are unpacked once for all tokens, and each sum is
added in the order of ``matvec``, so the results are the same to the bit.

The last row of an odd number is computed as a pair with itself, and written once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from engine.jit import inner
from engine.kernels.matvec import (
    addresses_of,
    claim,
    prefetch_ahead,
    scratch_of,
    side_by_side,
    store_result,
    tokens_from,
)
from engine.kernels.share import CLAIM_BYTES, claim_rows, n_tokens_of


class PairPhases(NamedTuple):
    """Computation of two rows in chunks of 256 weights, chunk by chunk.

    Attributes:
        token: (op, c) -> token, which begins with c.
        clear: Phase before all chunks; shares op.
        chunk: Makes the function that adds a chunk of both rows for n tokens:
            n -> (first, second, i, scratch, tokens, state) -> state. ``first`` and ``second`` are
            the addresses of the chunk in both rows, i is its number.
        totals: state -> (f32, f32), results of both rows.
        chunk_bytes: Bytes of 256 weights.
        may_overlap: As in ``matvec.Phases``.
    """

    token: Callable[..., Any]
    clear: Callable[..., Any]
    chunk: Callable[..., Any]
    totals: Callable[..., Any]
    chunk_bytes: int
    may_overlap: bool


def last_phase_of_two(totals):
    """Make the last phase: it writes the results of both rows if the step has the token."""

    @inner
    def finish_rows(shared, token, state):
        op, row, second_row = shared
        if token[0] < n_tokens_of(op):
            first, second = totals(state)
            store_result(op, token[0], row, first)
            if second_row != row:
                store_result(op, token[0], second_row, second)
        return state

    return finish_rows


def two_rows_with_tokens(n, phases):
    """Make the function that computes two rows, ``stride`` apart, with n tokens:
    (op, c, row, stride, scratch) -> None."""
    token, clear, chunk, totals, chunk_bytes, may_overlap = phases
    find_tokens = tokens_from(n, token)
    clear = side_by_side(n, clear)
    add_chunk = chunk(n)
    finish_rows = side_by_side(n, last_phase_of_two(totals))

    @inner
    def two_rows(op, c, row, stride, scratch):
        tokens = find_tokens(op, c)
        state = clear(op, tokens, tokens)
        block, last, row_bytes, n_chunks, ahead = addresses_of(op, row, chunk_bytes)
        distance = stride * row_bytes
        # Neighbours are prefetched in the order of their addresses: two streams, one in each row,
        # were half as fast.
        prefetch_address = block + distance
        for i in range(n_chunks):
            prefetch_ahead(prefetch_address, ahead, 2 * chunk_bytes)
            prefetch_address += 2 * chunk_bytes
            address = min(block, last) if may_overlap else block
            state = add_chunk(address, address + distance, i, scratch, tokens, state)
            block += chunk_bytes
        finish_rows((op, row, row + stride), tokens, state)

    return two_rows


def four_rows_apart(phases):
    """Make the function that computes four rows, ``stride`` apart, with token 0:
    (op, row, stride, scratch) -> None."""
    token, clear, chunk, totals, chunk_bytes, may_overlap = phases
    add_chunk = chunk(1)
    finish_rows = last_phase_of_two(totals)

    @inner
    def four_rows(op, row, stride, scratch):
        y = token(op, 0)
        a = clear(op, y, y)
        b = clear(op, y, y)
        block, last, row_bytes, n_chunks, ahead = addresses_of(op, row, chunk_bytes)
        distance = stride * row_bytes
        for i in range(n_chunks):
            first = min(block, last) if may_overlap else block
            third = first + 2 * distance
            prefetch_ahead(block, ahead, chunk_bytes)
            prefetch_ahead(block + distance, ahead, chunk_bytes)
            a = add_chunk(first, first + distance, i, scratch, y, a)
            prefetch_ahead(block + 2 * distance, ahead, chunk_bytes)
            prefetch_ahead(block + 3 * distance, ahead, chunk_bytes)
            b = add_chunk(third, third + distance, i, scratch, y, b)
            block += chunk_bytes
        finish_rows((op, row, row + stride), y, a)
        finish_rows((op, row + 2 * stride, row + 3 * stride), y, b)

    return four_rows


def matvec_in_pairs(phases):
    """Make the kernel ``matvec``: all rows with one token, two or four at a time."""
    two_rows = two_rows_with_tokens(1, phases)
    four_rows = four_rows_apart(phases)

    def matvec(op, thread, n_threads):
        scratch = scratch_of(op, thread)
        turn = 0
        while turn < n_threads:
            stride, first, last, turn = claim(op, thread, n_threads, turn)
            for row in range(first, first + stride):
                four_rows(op, row, stride, scratch)
            for row in range(first + 4 * stride, last, 2):
                two_rows(op, 0, row, min(1, last - row - 1), scratch)

    return matvec


def small_batch_in_pairs(phases):
    """Make the kernel ``small_batch``: all rows, two at a time, each with all tokens of the step
    before the next rows."""
    with_one, with_two, with_three, with_four = (
        two_rows_with_tokens(n, phases) for n in (1, 2, 3, 4)
    )

    def small_batch(op, thread, n_threads):
        n_tokens = n_tokens_of(op)
        scratch = scratch_of(op, thread)
        turn = 0
        while turn < n_threads:
            first, last, turn = claim_rows(op, 8, CLAIM_BYTES, thread, n_threads, turn)
            for row in range(first, last, 2):
                stride = min(1, last - row - 1)
                for c in range(0, n_tokens, 4):
                    n = n_tokens - c
                    if n >= 4:
                        with_four(op, c, row, stride, scratch)
                    elif n == 3:
                        with_three(op, c, row, stride, scratch)
                    elif n == 2:
                        with_two(op, c, row, stride, scratch)
                    else:
                        with_one(op, c, row, stride, scratch)

    return small_batch


def kernels_in_pairs(phases):
    """Make ``matvec`` and ``small_batch``."""
    return matvec_in_pairs(phases), small_batch_in_pairs(phases)

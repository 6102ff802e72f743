"""Decode: the product of a matrix with the activations of one token or a small batch; loops that
quantised types share.

out[t] = W @ x[t] (+ add[t]), f32. W is [n_rows, n_cols], each row its blocks as in the file. x is
[tokens, n_cols] int8 with a scale for each group of 256 or 32 (``QUANTIZE``). A result is a sum
over a row's blocks: integers, times the scales of both.

Each weight is read once, so memory sets the pace. Rows are read in order, or four rows far apart in
turn; lines are prefetched as the record says; unpacked weights stay in registers. A type supplies
``dot``, which adds one block's contribution to f32 lanes. Several tokens are several calls of the
same ``dot`` on the same block: the compiler unpacks its weights once for all of them, and every
token gets the same bits as alone.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from engine import simd as vec
from engine.jit import inner
from engine.kernels.records import LOOK_APART, LOOK_FLAGS, LOOK_NEAR, LOOK_PAGES
from engine.kernels.records import MATMUL as F
from engine.kernels.share import CLAIM_APART_BYTES, CLAIM_BYTES, claim_rows, n_tokens_of

PAGE_BYTES = 4096
PAGE_AHEAD_BYTES = 2048
"""Distance at which a page is prefetched; 1 to 7 kB make no difference (PERFORMANCE.md)."""


@inner
def store_result(op, c, row, value):
    """Write one row's result for token c, plus the bias or residual if the record names one."""
    add = vec.load_i64(op + F.add)
    if add != 0:
        value = value + vec.load_f32(add + 4 * (c * vec.load_i64(op + F.add_stride) + row))
    vec.store_f32(vec.load_i64(op + F.out) + 4 * (c * vec.load_i64(op + F.out_stride) + row), value)


@inner
def prefetch_lines(prefetch, address, n_bytes):
    """Prefetch the cache lines of the next ``n_bytes``, at most 576.

    There is no loop, whose branches would cost more.

    Args:
        prefetch: ``prefetch_l2``, or ``prefetch_once`` for data that other cache levels need
            not keep.
    """
    prefetch(address)
    if n_bytes > 64:
        prefetch(address + 64)
    if n_bytes > 128:
        prefetch(address + 128)
    if n_bytes > 192:
        prefetch(address + 192)
    if n_bytes > 256:
        prefetch(address + 256)
    if n_bytes > 320:
        prefetch(address + 320)
    if n_bytes > 384:
        prefetch(address + 384)
    if n_bytes > 448:
        prefetch(address + 448)
    if n_bytes > 512:
        prefetch(address + 512)


@inner
def prefetch_page(address, n_bytes):
    """Prefetch the first two lines of the page that begins within ``n_bytes`` from ``address``, if
    any."""
    if address & (PAGE_BYTES - 1) < n_bytes:
        page = address & -PAGE_BYTES
        vec.prefetch_l1(page)
        vec.prefetch_l1(page + 64)


@inner
def prefetch_ahead(address, ahead, n_bytes):
    """Prefetch ``n_bytes`` ahead of ``address``, as a choice of ``engine.plan.lookahead`` says."""
    if ahead & LOOK_PAGES:
        prefetch_page(address + PAGE_AHEAD_BYTES, n_bytes)
    distance = ahead & ~LOOK_FLAGS
    if distance < 0:
        prefetch_lines(vec.prefetch_once, address - distance, n_bytes)
    elif distance > 0:
        if ahead & LOOK_NEAR:
            prefetch_lines(vec.prefetch_l1, address + distance, n_bytes)
        else:
            prefetch_lines(vec.prefetch_l2, address + distance, n_bytes)


@inner
def claim(op, thread, n_threads, turn):
    """Claim the next rows for decode, as ``claim_rows`` does, and return how far apart four rows
    are.

    Returns:
        (stride, first, last, turn): Rows ``first`` to ``first + stride`` are computed together with
        the
        rows 1, 2 and 3 times ``stride`` after them, the others one by one. If ``stride`` is 0, all
        rows are computed one by one.
    """
    if vec.load_i64(op + F.ahead) & LOOK_APART:
        first, last, turn = claim_rows(op, 8, CLAIM_APART_BYTES, thread, n_threads, turn)
        return (last - first) // 4, first, last, turn
    first, last, turn = claim_rows(op, 8, CLAIM_BYTES, thread, n_threads, turn)
    return 0, first, last, turn


@inner
def scratch_of(op, thread):
    """Return the address of a thread's scratch, for what a row's computation stores and reads
    again."""
    return vec.load_i64(op + F.scratch) + thread * vec.load_i64(op + F.scratch_bytes)


def rows_apart(one_row, four_rows):
    """Make the kernel ``matvec``: all rows with one token, some of them four at a time.

    Args:
        one_row: (op, c, row, scratch) -> None, computes a row with token c.
        four_rows: (op, row, stride) -> None, computes four rows that are ``stride`` apart with
            token 0.
    """

    def matvec(op, thread, n_threads):
        scratch = scratch_of(op, thread)
        turn = 0
        while turn < n_threads:
            stride, first, last, turn = claim(op, thread, n_threads, turn)
            for row in range(first, first + stride):
                four_rows(op, row, stride)
            for row in range(first + 4 * stride, last):
                one_row(op, 0, row, scratch)

    return matvec


def rows_in_order(one_row, is_small_batch):
    """Make ``matvec`` or ``small_batch``: all rows with one token, or with each token of the
    step."""

    def rows(op, thread, n_threads):
        n_tokens = n_tokens_of(op) if is_small_batch else 1
        scratch = scratch_of(op, thread)
        turn = 0
        while turn < n_threads:
            first, last, turn = claim_rows(op, 8, CLAIM_BYTES, thread, n_threads, turn)
            for row in range(first, last):
                for c in range(n_tokens):
                    one_row(op, c, row, scratch)

    return rows


def rows_with_small_batch(one_token, two_tokens, three_tokens, four_tokens):
    """Make ``small_batch``: all rows, each with all tokens of the step before the next row.

    Args:
        one_token, two_tokens, three_tokens, four_tokens: (op, c, row, scratch) -> None, compute a
            row with the tokens from c on.
    """

    def small_batch(op, thread, n_threads):
        n_tokens = n_tokens_of(op)
        scratch = scratch_of(op, thread)
        turn = 0
        while turn < n_threads:
            first, last, turn = claim_rows(op, 8, CLAIM_BYTES, thread, n_threads, turn)
            for row in range(first, last):
                for c in range(0, n_tokens, 4):
                    n = n_tokens - c
                    if n >= 4:
                        four_tokens(op, c, row, scratch)
                    elif n == 3:
                        three_tokens(op, c, row, scratch)
                    elif n == 2:
                        two_tokens(op, c, row, scratch)
                    else:
                        one_token(op, c, row, scratch)

    return small_batch


def two_and_one(one_token, two_tokens):
    """Make the function that computes a row with three tokens of those for two and for one, for
    types where a function of its own would take too long to compile."""

    @inner
    def three_tokens(op, c, row, scratch):
        two_tokens(op, c, row, scratch)
        one_token(op, c + 2, row, scratch)

    return three_tokens


@cache
def side_by_side(n, phase):
    """Make a phase for n tokens.

    A phase is a step of the computation of a row with a token: (shared, token, state) -> state.
    ``shared`` is the same for all tokens. For several tokens, ``token`` and ``state`` are pairs, or
    pairs of pairs; of an odd number, the second of a pair has one more.
    """
    if n == 1:
        return phase
    first_half = side_by_side(n // 2, phase)
    second_half = side_by_side(n - n // 2, phase)

    @inner
    def phase_of_pair(shared, tokens, state):
        (first, second) = tokens
        (a, b) = state
        return first_half(shared, first, a), second_half(shared, second, b)

    return phase_of_pair


@cache
def tokens_from(n, token):
    """Make the function that finds n tokens from c on, as ``side_by_side`` takes them.

    ``token`` finds one: (op, c) -> token, which begins with c.
    """
    if n == 1:
        return token
    first_half = tokens_from(n // 2, token)
    second_half = tokens_from(n - n // 2, token)

    @inner
    def pair_of_tokens(op, c):
        return first_half(op, c), second_half(op, c + n // 2)

    return pair_of_tokens


def last_phase(total):
    """Make the last phase: it writes the sum of a state as a row's result if the step has the
    token."""

    @inner
    def finish_row(shared, token, state):
        op, row = shared
        if token[0] < n_tokens_of(op):
            store_result(op, token[0], row, total(state))
        return state

    return finish_row


@inner
def clear_sums(shared, token, state):
    """Return eight sums of zero: the first phase."""
    return vec.splat_f32x8(0.0)


class Phases(NamedTuple):
    """Computation of rows in chunks of 256 weights, chunk by chunk.

    Attributes:
        token: (op, c) -> token, which begins with c.
        clear: Phase before all chunks; shares op.
        add: Phase of a chunk; shares (address of the chunk, its number).
        finish_row: Phase after all chunks; shares (op, row).
        chunk_bytes: Bytes of 256 weights.
        may_overlap: Whether the last chunk may begin before the end of the previous one. Scales of
            activations are then zero for weights that were added already.
    """

    token: Callable[..., Any]
    clear: Callable[..., Any]
    add: Callable[..., Any]
    finish_row: Callable[..., Any]
    chunk_bytes: int
    may_overlap: bool


@inner
def addresses_of(op, row, chunk_bytes):
    """Return the addresses of a row and its last chunk, and how to read them.

    Returns:
        (address, address of the last chunk, bytes of a row, number of chunks, prefetch choice).
    """
    weights, row_bytes, n_cols, ahead = vec.load_words(
        op, (F.weights, F.row_bytes, F.n_cols, F.ahead)
    )
    block = weights + row * row_bytes
    return (
        block,
        block + (n_cols // 32 - 8) * chunk_bytes // 8,
        row_bytes,
        (n_cols + 255) // 256,
        ahead,
    )


def row_of_blocks(n, phases):
    """Make the function that computes a row with n tokens: (op, c, row, scratch) -> None."""
    token, *steps, chunk_bytes, may_overlap = phases
    find_tokens = tokens_from(n, token)
    (clear, add, finish_row) = (side_by_side(n, phase) for phase in steps)

    @inner
    def row_with_tokens(op, c, row, scratch):
        tokens = find_tokens(op, c)
        state = clear(op, tokens, tokens)
        block, last, _, n_chunks, ahead = addresses_of(op, row, chunk_bytes)
        for i in range(n_chunks):
            prefetch_ahead(block, ahead, chunk_bytes)
            state = add((min(block, last) if may_overlap else block, i), tokens, state)
            block += chunk_bytes
        finish_row((op, row), tokens, state)

    return row_with_tokens


def row_kernels(phases, has_three=False):
    """Make ``matvec`` and ``small_batch``.

    Args:
        has_three: Whether three tokens have a function of their own (``two_and_one``).
    """
    token, clear, add, finish_row, chunk_bytes, may_overlap = phases

    @inner
    def four_rows(op, row, stride):
        y = token(op, 0)
        a0 = clear(op, y, y)
        a1 = clear(op, y, y)
        a2 = clear(op, y, y)
        a3 = clear(op, y, y)
        block, last, row_bytes, n_chunks, ahead = addresses_of(op, row, chunk_bytes)
        distance = stride * row_bytes
        for i in range(n_chunks):
            address = min(block, last) if may_overlap else block
            prefetch_ahead(block, ahead, chunk_bytes)
            a0 = add((address, i), y, a0)
            prefetch_ahead(block + distance, ahead, chunk_bytes)
            a1 = add((address + distance, i), y, a1)
            prefetch_ahead(block + 2 * distance, ahead, chunk_bytes)
            a2 = add((address + 2 * distance, i), y, a2)
            prefetch_ahead(block + 3 * distance, ahead, chunk_bytes)
            a3 = add((address + 3 * distance, i), y, a3)
            block += chunk_bytes
        finish_row((op, row), y, a0)
        finish_row((op, row + stride), y, a1)
        finish_row((op, row + 2 * stride), y, a2)
        finish_row((op, row + 3 * stride), y, a3)

    one_token, two_tokens, four_tokens = (row_of_blocks(n, phases) for n in (1, 2, 4))
    if has_three:
        three_tokens = row_of_blocks(3, phases)
    else:
        three_tokens = two_and_one(one_token, two_tokens)
    return rows_apart(one_token, four_rows), rows_with_small_batch(
        one_token, two_tokens, three_tokens, four_tokens
    )

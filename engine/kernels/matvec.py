"""Decode: the product of a matrix with the activations of one token, or a few; the loops that
quantised types share.

out[(token), n_rows] f32 = W x: W is [n_rows, n_cols], each row its blocks as they are in the file,
and x is [(token), n_cols] int8 with a scale for each group of 256 or 32 (``QUANTIZE``). A *column*
is x of one token, with its scales and sums. A result is a sum over a row's blocks: of whole
numbers, times the scales of both.

Each weight is read once, so memory sets the pace: rows are read in order, or four rows far apart in
turn, lines are asked for ahead, as the record says, and what is unpacked stays in registers. A type
supplies ``dot``, which adds one block's contribution to f32 lanes. Several columns are several
calls of the same ``dot`` on the same block: the compiler unpacks its weights once for all of them,
and every column comes out as it would alone, to the bit.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from engine import simd as vec
from engine.jit import inner
from engine.kernels.records import LOOK_APART, LOOK_FLAGS, LOOK_NEAR, LOOK_PAGES
from engine.kernels.records import MATMUL as F
from engine.kernels.share import CLAIM_APART_BYTES, CLAIM_BYTES, claim_rows, n_tokens_of

PAGE_BYTES = 4096
PAGE_AHEAD_BYTES = 2048
"""From 1 to 7 kB made no difference (PERFORMANCE.md)."""


@inner
def finish(op, c, row, value):
    """Write one row's result for column c, with the bias or residual added where the record names
    one."""
    add = vec.load_i64(op + F.add)
    if add != 0:
        value = value + vec.load_f32(add + 4 * (c * vec.load_i64(op + F.add_stride) + row))
    vec.store_f32(vec.load_i64(op + F.out) + 4 * (c * vec.load_i64(op + F.out_stride) + row), value)


@inner
def each_line(ask, at, n_bytes):
    """Ask for the cache lines of the next ``n_bytes``, at most 384; without a loop, whose branches
    would cost more.

    Args:
        ask: ``prefetch_l2``, or ``prefetch_once`` for data that no other level of the cache need
            keep.
    """
    ask(at)
    if n_bytes > 64:
        ask(at + 64)
    if n_bytes > 128:
        ask(at + 128)
    if n_bytes > 192:
        ask(at + 192)
    if n_bytes > 256:
        ask(at + 256)
    if n_bytes > 320:
        ask(at + 320)


@inner
def ask_page(at, n_bytes):
    """Ask for the first two lines of the page that begins within ``n_bytes`` from ``at``, if one
    does."""
    if at & (PAGE_BYTES - 1) < n_bytes:
        page = at & -PAGE_BYTES
        vec.prefetch_l1(page)
        vec.prefetch_l1(page + 64)


@inner
def ask_ahead(at, ahead, n_bytes):
    """Ask for lines ahead of ``at``, of ``n_bytes``, as a choice of ``engine.plan.lookahead``
    says."""
    if ahead & LOOK_PAGES:
        ask_page(at + PAGE_AHEAD_BYTES, n_bytes)
    far = ahead & ~LOOK_FLAGS
    if far < 0:
        each_line(vec.prefetch_once, at - far, n_bytes)
    elif far > 0:
        if ahead & LOOK_NEAR:
            each_line(vec.prefetch_l1, at + far, n_bytes)
        else:
            each_line(vec.prefetch_l2, at + far, n_bytes)


@inner
def claim(op, thread, n_threads, turn):
    """The next rows for decode, as ``claim_rows`` returns them, and before them how far apart four
    rows are.

    Returns:
        (apart, first, last, turn): rows ``first`` to ``first + apart`` are walked each with the
        three that are 1, 2 and 3 times ``apart`` after it; the rest, all where it is 0, one after
        the other.
    """
    if vec.load_i64(op + F.ahead) & LOOK_APART:
        first, last, turn = claim_rows(op, 8, CLAIM_APART_BYTES, thread, n_threads, turn)
        return (last - first) // 4, first, last, turn
    first, last, turn = claim_rows(op, 8, CLAIM_BYTES, thread, n_threads, turn)
    return 0, first, last, turn


@inner
def scratch_of(op, thread):
    """Address of a thread's room: scratch memory of its own, for what a row's computation leaves
    and reads again."""
    return vec.load_i64(op + F.scratch) + thread * vec.load_i64(op + F.scratch_bytes)


def rows_apart(one, four_rows):
    """Make the kernel ``matvec``: all rows with one column, some of them four at a time.

    Args:
        one: (op, c, row, room) -> None, computes a row with column c.
        four_rows: (op, row, apart) -> None, computes four that are ``apart`` from each other with
            column 0.
    """

    def matvec(op, thread, n_threads):
        room = scratch_of(op, thread)
        turn = 0
        while turn < n_threads:
            apart, first, last, turn = claim(op, thread, n_threads, turn)
            for row in range(first, first + apart):
                four_rows(op, row, apart)
            for row in range(first + 4 * apart, last):
                one(op, 0, row, room)

    return matvec


def rows_in_order(one, is_small_batch):
    """Make ``matvec``, or ``small_batch``: all rows with one column, or with those of the step one
    after the other."""

    def rows(op, thread, n_threads):
        n_columns = n_tokens_of(op) if is_small_batch else 1
        room = scratch_of(op, thread)
        turn = 0
        while turn < n_threads:
            first, last, turn = claim_rows(op, 8, CLAIM_BYTES, thread, n_threads, turn)
            for row in range(first, last):
                for c in range(n_columns):
                    one(op, c, row, room)

    return rows


def rows_with_small_batch(one, two, four):
    """Make ``small_batch``: all rows with the few columns of the step, a row with all of them
    before the next row.

    Args:
        one, two, four: (op, c, row, room) -> None, compute a row with the columns from c on; four,
        or three.
    """

    def small_batch(op, thread, n_threads):
        n_tokens = n_tokens_of(op)
        room = scratch_of(op, thread)
        turn = 0
        while turn < n_threads:
            first, last, turn = claim_rows(op, 8, CLAIM_BYTES, thread, n_threads, turn)
            for row in range(first, last):
                for c in range(0, n_tokens, 4):
                    if n_tokens - c >= 3:
                        four(op, c, row, room)
                    elif n_tokens - c == 2:
                        two(op, c, row, room)
                    else:
                        one(op, c, row, room)

    return small_batch


def side_by_side(n, phase):
    """The same phase for n columns, a power of two.

    A phase is a step of what is done for a row with a column: (shared, column, state) -> state.
    What is shared is the same for all columns. Of several columns, column and state are pairs, of
    pairs.
    """
    if n == 1:
        return phase
    half = side_by_side(n // 2, phase)

    @inner
    def both(shared, columns, state):
        (first, second) = columns
        (a, b) = state
        return half(shared, first, a), half(shared, second, b)

    return both


def columns_from(n, column):
    """Find n columns, as ``side_by_side`` takes them, with what finds one: (op, c) -> column; it
    begins with c."""
    if n == 1:
        return column
    half = columns_from(n // 2, column)

    @inner
    def both(op, c):
        return half(op, c), half(op, c + n // 2)

    return both


def leaving(total):
    """Make the last phase: the sum of a state is a row's result, where the step has that column."""

    @inner
    def leave(shared, column, state):
        op, row = shared
        if column[0] < n_tokens_of(op):
            finish(op, column[0], row, total(state))
        return state

    return leave


@inner
def clear_sums(shared, column, state):
    """A phase: eight sums of zero."""
    return vec.splat_f32x8(0.0)


class Phases(NamedTuple):
    """What is done for rows in chunks of 256 weights, chunk by chunk.

    Attributes:
        column: (op, c) -> column, which begins with c.
        clear: before all chunks, shares op.
        add: shares (address of the chunk, its number).
        leave: after all chunks, shares (op, row).
        chunk_bytes: of 256 weights.
        may_overlap: whether the last chunk may begin before the one before ends; the activations'
            scales are zero for what was added already.
    """

    column: Callable[..., Any]
    clear: Callable[..., Any]
    add: Callable[..., Any]
    leave: Callable[..., Any]
    chunk_bytes: int
    may_overlap: bool


@inner
def find_citations(op, row, chunk_bytes):
    """Where a row and its last chunk begin, bytes of a row, number of its chunks, and how far to
    ask ahead."""
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
    """Make what computes a row with n columns: (op, c, row, room) -> None."""
    column, *steps, chunk_bytes, may_overlap = phases
    begin = columns_from(n, column)
    (clear, add, leave) = (side_by_side(n, one) for one in steps)

    @inner
    def row_with_columns(op, c, row, room):
        columns = begin(op, c)
        state = clear(op, columns, columns)
        block, last, _, n_chunks, ahead = find_citations(op, row, chunk_bytes)
        for i in range(n_chunks):
            ask_ahead(block, ahead, chunk_bytes)
            state = add((min(block, last) if may_overlap else block, i), columns, state)
            block += chunk_bytes
        leave((op, row), columns, state)

    return row_with_columns


def row_kernels(phases):
    """Make ``matvec`` and ``small_batch``."""
    column, clear, add, leave, chunk_bytes, may_overlap = phases

    @inner
    def four_rows(op, row, apart):
        y = column(op, 0)
        a0 = clear(op, y, y)
        a1 = clear(op, y, y)
        a2 = clear(op, y, y)
        a3 = clear(op, y, y)
        block, last, row_bytes, n_chunks, ahead = find_citations(op, row, chunk_bytes)
        far = apart * row_bytes
        for i in range(n_chunks):
            at = min(block, last) if may_overlap else block
            ask_ahead(block, ahead, chunk_bytes)
            a0 = add((at, i), y, a0)
            ask_ahead(block + far, ahead, chunk_bytes)
            a1 = add((at + far, i), y, a1)
            ask_ahead(block + 2 * far, ahead, chunk_bytes)
            a2 = add((at + 2 * far, i), y, a2)
            ask_ahead(block + 3 * far, ahead, chunk_bytes)
            a3 = add((at + 3 * far, i), y, a3)
            block += chunk_bytes
        leave((op, row), y, a0)
        leave((op, row + apart), y, a1)
        leave((op, row + 2 * apart), y, a2)
        leave((op, row + 3 * apart), y, a3)

    one, two, four = (row_of_blocks(n, phases) for n in (1, 2, 4))
    return rows_apart(one, four_rows), rows_with_small_batch(one, two, four)

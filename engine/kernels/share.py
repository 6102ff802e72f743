"""How the rows, columns or heads of one operation are dealt to the threads."""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import CLAIMS, COUNTER_BYTES, MATMUL, STEP

CLAIM_BYTES = 64 << 10
"""Weights in one claim: long enough to read memory in order, short enough that no one waits long
for the last one."""
CLAIM_APART_BYTES = 256 << 10
"""The same where memory is read in four places: each begins again with every claim."""


@inner
def n_tokens_of(op):
    """Tokens of the step that a record begins with."""
    return vec.load_i64(vec.load_i64(op) + STEP.n_tokens)


@inner
def share(n, step, thread, n_threads):
    """Contiguous range of ``n`` items for one thread, borders at multiples of ``step``.

    Returns:
        (first, last): the thread's items are first <= i < last; empty ranges are possible.
    """
    groups = (n + step - 1) // step
    first = groups * thread // n_threads * step
    last = groups * (thread + 1) // n_threads * step
    return first, min(last, n)


@inner
def claim_rows(op, step, n_bytes, thread, n_threads, turn):
    """The next rows of a matrix for this thread: first of its own contiguous share, then of what
    others left.

    A thread that another program pushed from its core, or that has a slower core, so loses no more
    than one claim.

    Args:
        step: rows that are worked on together.
        n_bytes: of weights in a claim, about.
        turn: 0 at first, then what the last call returned.

    Returns:
        (first, last, turn); there is nothing left when turn is n_threads.
    """
    n_rows, counters = vec.load_words(op, (MATMUL.n_rows, MATMUL.claims))
    n_each = max(step, n_bytes // vec.load_i64(op + MATMUL.row_bytes) // step * step)
    while turn < n_threads:
        owner = (thread + turn) % n_threads
        first, last = share(n_rows, 8, owner, n_threads)
        first += n_each * vec.atomic_add(counters + COUNTER_BYTES * owner, 1)
        if first < last:
            return first, min(first + n_each, last), turn
        turn += 1
    return 0, 0, turn


@kernel
def reset_claims(op, thread, n_threads):
    """Begin a walk with all rows unclaimed; the first thread does it, before the first barrier."""
    if thread == 0:
        address, n_bytes = vec.load_words(op, (CLAIMS.address, CLAIMS.n_bytes))
        for at in range(0, n_bytes, COUNTER_BYTES):
            vec.store_i64(address + at, 0)

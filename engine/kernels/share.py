"""Division of the rows, tokens or heads of one operation among the threads."""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import CLAIMS, COUNTER_BYTES, MATMUL, STEP

CLAIM_BYTES = 64 << 10
"""Bytes of weights in one claim.

Long enough to read memory in order, short enough that no thread waits long for the last claim.
"""
CLAIM_APART_BYTES = 256 << 10
"""Bytes of weights in one claim if memory is read in four places, which begin again in every
claim."""


@inner
def n_tokens_of(op):
    """Return the number of tokens of the step that a record begins with."""
    return vec.load_i64(vec.load_i64(op) + STEP.n_tokens)


@inner
def share(n, step, thread, n_threads):
    """Return the range of ``n`` items that one thread computes, with borders at multiples of
    ``step``.

    Returns:
        (first, last): The thread's items are first <= i < last; the range may be empty.
    """
    groups = (n + step - 1) // step
    first = groups * thread // n_threads * step
    last = groups * (thread + 1) // n_threads * step
    return first, min(last, n)


@inner
def claim_rows(op, step, n_bytes, thread, n_threads, turn):
    """Claim the next rows of a matrix for this thread: its own share first, then the shares of
    others.

    A thread that lost its core to another program, or has a slower core, costs at most one claim.


    Args:
        step: Rows that are computed together.
        n_bytes: Approximate bytes of weights in a claim.
        turn: 0 at first, then the value that the last call returned.

    Returns:
        (first, last, turn); all rows are claimed once turn is n_threads.
    """
    n_rows, counters = vec.load_words(op, (MATMUL.n_rows, MATMUL.claims))
    claim_rows_count = max(step, n_bytes // vec.load_i64(op + MATMUL.row_bytes) // step * step)
    while turn < n_threads:
        owner = (thread + turn) % n_threads
        first, last = share(n_rows, 8, owner, n_threads)
        first += claim_rows_count * vec.atomic_add(counters + COUNTER_BYTES * owner, 1)
        if first < last:
            return first, min(first + claim_rows_count, last), turn
        turn += 1
    return 0, 0, turn


@kernel
def reset_claims(op, thread, n_threads):
    """Mark all rows as unclaimed before a run; the first thread does it, before the first
    barrier."""
    if thread == 0:
        address, n_bytes = vec.load_words(op, (CLAIMS.address, CLAIMS.n_bytes))
        for offset in range(0, n_bytes, COUNTER_BYTES):
            vec.store_i64(address + offset, 0)

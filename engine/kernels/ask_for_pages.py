"""Reading ahead where a model is larger than memory: weights are asked for before threads reach
them.

Without it the threads read them by page faults, one after the other; so the disk has all requests
at once.
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import ASK as F
from engine.kernels.records import EXPERT, EXPERT_BYTES, STREAM

ASKED_BYTES = 128 << 10
"""Of one request: what Linux reads ahead of a file at most, unless told otherwise; it would drop
the rest."""


@inner
def ask_for(first, n_bytes):
    """Ask for all pages that hold some bytes."""
    for at in range(first & -vec.PAGE_BYTES, first + n_bytes, ASKED_BYTES):
        vec.ask_for_pages(at, min(ASKED_BYTES, first + n_bytes - at))


@kernel
def ask_for_experts(op, thread, n_threads):
    """Ask for the weights of the chosen experts.

    The last thread asks; the others begin meanwhile.
    """
    if thread == n_threads - 1:
        table, slabs = vec.load_words(op, (F.table, F.slabs))
        for i in range(vec.load_i64(table)):
            number = vec.load_i64(table + EXPERT_BYTES * (i + 1) + EXPERT.number)
            for s in range(vec.load_i64(op + F.n_slabs)):
                n_bytes = vec.load_i64(slabs + 16 * s + 8)
                ask_for(vec.load_i64(slabs + 16 * s) + number * n_bytes, n_bytes)


@kernel
def stream(op, thread, n_threads):
    """Drop the pages that one matrix has for itself, and ask for another.

    The last thread does it.
    """
    if thread == n_threads - 1:
        first, n_bytes = vec.load_words(op, (STREAM.last, STREAM.last_bytes))
        begin = (first + vec.PAGE_BYTES - 1) & -vec.PAGE_BYTES
        end = (first + n_bytes) & -vec.PAGE_BYTES
        if begin < end:
            vec.drop_pages(begin, end - begin)
        ask_for(vec.load_i64(op + STREAM.next), vec.load_i64(op + STREAM.next_bytes))

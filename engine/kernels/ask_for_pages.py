"""Reading ahead where a model is larger than memory: weights are asked for before threads reach them.

Without it the threads read them by page faults, one after the other; so the disk has all requests at once.
"""

from engine.jit import inner, kernel
from engine.kernels.records import ASK as F
from engine.kernels.records import EXPERT, EXPERT_BYTES, STREAM
from engine.simd import PAGE_BYTES, ask_for_pages, drop_pages, load_i64

ASKED_BYTES = 128 << 10
"""Of one request: what Linux reads ahead of a file at most, unless told otherwise; it would drop the rest."""


@inner
def ask_for(first, n_bytes):
    """Ask for all pages that hold some bytes."""
    for at in range(first & -PAGE_BYTES, first + n_bytes, ASKED_BYTES):
        ask_for_pages(at, min(ASKED_BYTES, first + n_bytes - at))


@kernel
def ask_for_experts(op, thread, n_threads):
    """Ask for the weights of the chosen experts. The last thread asks; the others begin meanwhile."""
    if thread == n_threads - 1:
        table, slabs = load_i64(op + F.table), load_i64(op + F.slabs)
        for i in range(load_i64(table)):
            number = load_i64(table + EXPERT_BYTES * (i + 1) + EXPERT.number)
            for s in range(load_i64(op + F.n_slabs)):
                n_bytes = load_i64(slabs + 16 * s + 8)
                ask_for(load_i64(slabs + 16 * s) + number * n_bytes, n_bytes)


@kernel
def stream(op, thread, n_threads):
    """Drop the pages that one matrix has for itself, and ask for another. The last thread does it."""
    if thread == n_threads - 1:
        first, n_bytes = load_i64(op + STREAM.last), load_i64(op + STREAM.last_bytes)
        begin, end = (first + PAGE_BYTES - 1) & -PAGE_BYTES, (first + n_bytes) & -PAGE_BYTES
        if begin < end:
            drop_pages(begin, end - begin)
        ask_for(load_i64(op + STREAM.next), load_i64(op + STREAM.next_bytes))

"""Reading ahead where a model is larger than memory: the chosen experts' weights, as soon as they are chosen.

Without it the threads read them by page faults, one after the other; so the disk has all requests at once.
"""

from engine.jit import kernel
from engine.kernels.records import ASK as F
from engine.kernels.records import EXPERT, EXPERT_BYTES
from engine.simd import PAGE_BYTES, ask_for_pages, load_i64

ASKED_BYTES = 128 << 10
"""Of one request: what Linux reads ahead of a file at most, unless told otherwise; it would drop the rest."""


@kernel
def ask_for_experts(op, thread, n_threads):
    """The last thread asks; the others begin meanwhile."""
    if thread == n_threads - 1:
        table, slabs = load_i64(op + F.table), load_i64(op + F.slabs)
        for i in range(load_i64(table)):
            number = load_i64(table + EXPERT_BYTES * (i + 1) + EXPERT.number)
            for s in range(load_i64(op + F.n_slabs)):
                n_bytes = load_i64(slabs + 16 * s + 8)
                first = load_i64(slabs + 16 * s) + number * n_bytes
                for at in range(first & -PAGE_BYTES, first + n_bytes, ASKED_BYTES):
                    ask_for_pages(at, min(ASKED_BYTES, first + n_bytes - at))

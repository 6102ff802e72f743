"""Requests for pages of weights, for models that are larger than memory.

Without them, threads would wait for one page fault after another. With them, the disk has all
requests at once.
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import EXPERT, EXPERT_BYTES, STREAM
from engine.kernels.records import PREFETCH as F

READAHEAD_BYTES = 128 << 10
"""Bytes of one request.

Linux reads no more ahead of a file by default and drops the rest.
"""


@inner
def prefetch_range(first, n_bytes):
    """Request all pages that hold ``n_bytes`` from ``first`` on."""
    for address in range(first & -vec.PAGE_BYTES, first + n_bytes, READAHEAD_BYTES):
        vec.prefetch_pages(address, min(READAHEAD_BYTES, first + n_bytes - address))


@kernel
def prefetch_experts(op, thread, n_threads):
    """Request the weights of the chosen experts.

    The last thread does it while the others go on.
    """
    if thread == n_threads - 1:
        table, slabs = vec.load_words(op, (F.table, F.slabs))
        for i in range(vec.load_i64(table)):
            number = vec.load_i64(table + EXPERT_BYTES * (i + 1) + EXPERT.number)
            for s in range(vec.load_i64(op + F.n_slabs)):
                n_bytes = vec.load_i64(slabs + 16 * s + 8)
                prefetch_range(vec.load_i64(slabs + 16 * s) + number * n_bytes, n_bytes)


@kernel
def stream(op, thread, n_threads):
    """Drop the pages that belong to one matrix alone, and request those of another.

    The last thread does it.
    """
    if thread == n_threads - 1:
        first, n_bytes = vec.load_words(op, (STREAM.last, STREAM.last_bytes))
        begin = (first + vec.PAGE_BYTES - 1) & -vec.PAGE_BYTES
        end = (first + n_bytes) & -vec.PAGE_BYTES
        if begin < end:
            vec.drop_pages(begin, end - begin)
        prefetch_range(vec.load_i64(op + STREAM.next), vec.load_i64(op + STREAM.next_bytes))

"""Tokens by the experts they chose, and a kernel run for each expert in use: whatever its type,
with its own tokens.

The experts share the crew without a barrier between two of them: the threads claim rows of one
after the other.
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import COUNTER_BYTES, EACH, EACH_BYTES, EXPERT, EXPERT_BYTES
from engine.kernels.records import GROUP as F
from engine.kernels.share import n_tokens_of
from engine.kernels.tiles import TILE_TOKENS


@inner
def count_tokens(ids, n_chosen, n_experts, counts):
    """How often each expert was chosen."""
    for e in range(n_experts):
        vec.store_i64(counts + 8 * e, 0)
    for i in range(n_chosen):
        at = counts + 8 * vec.load_i32(ids + 4 * i)
        vec.store_i64(at, vec.load_i64(at) + 1)


@inner
def reset_expert(op, place, n_threads):
    """Begin with all rows of an expert unclaimed."""
    n_bytes = vec.load_i64(op + F.claims_bytes)
    for row in range(vec.load_i64(op + F.n_claims)):
        at = (
            vec.load_i64(op + F.claims)
            + row * vec.load_i64(op + F.row_claims_bytes)
            + place * n_bytes
        )
        for thread in range(n_threads):
            vec.store_i64(at + COUNTER_BYTES * thread, 0)


@kernel
def group_tokens(op, thread, n_threads):
    """The first thread does it: a walk over all choices, none of which is longer than a look at its
    weights."""
    if thread == 0:
        ids, columns, counts = vec.load_words(op, (F.ids, F.columns, F.room))
        n_experts, table = vec.load_words(op, (F.n_experts, F.table))
        pad = min(vec.load_i64(op + F.pad), TILE_TOKENS)
        n_chosen = n_tokens_of(op) * vec.load_i64(op + F.n_used)
        count_tokens(ids, n_chosen, n_experts, counts)
        n_entries = 0
        first = 0
        for e in range(n_experts):
            n_tokens = vec.load_i64(counts + 8 * e)
            if n_tokens > 0:
                entry = table + EXPERT_BYTES * (n_entries + 1)
                vec.store_i64(entry + EXPERT.n_tokens, n_tokens)
                vec.store_i64(entry + EXPERT.number, e)
                vec.store_i64(entry + EXPERT.first, first)
                reset_expert(op, n_entries, n_threads)
                vec.store_i64(counts + 8 * e, first)  # from now on the expert's next column
                first += (n_tokens + pad - 1) // pad * pad
                n_entries += 1
        vec.store_i64(table, n_entries)
        for i in range(n_chosen):
            at = counts + 8 * vec.load_i32(ids + 4 * i)
            vec.store_i32(columns + 4 * i, vec.load_i64(at))
            vec.store_i64(at, vec.load_i64(at) + 1)


@kernel
def each_expert(op, thread, n_threads):
    """Every thread calls the kernel with a record of its own."""
    table, patches, n_patches = vec.load_words(op, (EACH.table, EACH.patches, EACH.n_patches))
    record = vec.load_i64(op + EACH.room) + EACH_BYTES * thread
    code = vec.load_i64(op + EACH.kernel)
    for i in range(vec.load_i64(table)):
        entry = table + EXPERT_BYTES * (i + 1)
        number, first = vec.load_words(entry, (EXPERT.number, EXPERT.first))
        for word in range(8, EACH.kernel, 8):
            vec.store_i64(record + word, vec.load_i64(op + word))
        vec.store_i64(record, entry)
        for p in range(n_patches):
            patch = patches + 32 * p
            at = record + vec.load_i64(patch)
            more = (
                number * vec.load_i64(patch + 8)
                + first * vec.load_i64(patch + 16)
                + i * vec.load_i64(patch + 24)
            )
            vec.store_i64(at, vec.load_i64(at) + more)
        vec.call_kernel(code, record, thread, n_threads)

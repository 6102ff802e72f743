"""Groups of tokens by the experts they chose, and a kernel that runs once for each expert in use.

Experts need no barrier between each other: the threads claim rows of one after the other.
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import COUNTER_BYTES, EACH, EACH_BYTES, EXPERT, EXPERT_BYTES
from engine.kernels.records import GROUP as F
from engine.kernels.share import n_tokens_of
from engine.kernels.tiles import TILE_TOKENS


@inner
def count_tokens(ids, n_chosen, n_experts, counts):
    """Count how often each expert was chosen: n_experts int64 at ``counts``."""
    for e in range(n_experts):
        vec.store_i64(counts + 8 * e, 0)
    for i in range(n_chosen):
        count = counts + 8 * vec.load_i32(ids + 4 * i)
        vec.store_i64(count, vec.load_i64(count) + 1)


@inner
def reset_expert(op, index, n_threads):
    """Mark all rows of an expert as unclaimed."""
    n_bytes = vec.load_i64(op + F.claims_bytes)
    for row in range(vec.load_i64(op + F.n_claims)):
        claims = (
            vec.load_i64(op + F.claims)
            + row * vec.load_i64(op + F.row_claims_bytes)
            + index * n_bytes
        )
        for thread in range(n_threads):
            vec.store_i64(claims + COUNTER_BYTES * thread, 0)


@kernel
def group_tokens(op, thread, n_threads):
    """Group the tokens of the step by expert.

    The first thread does it alone: a pass over all choices takes no longer than a look at the
    weights of one.
    """
    if thread == 0:
        ids, slots, counts = vec.load_words(op, (F.ids, F.slots, F.scratch))
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
                vec.store_i64(counts + 8 * e, first)  # the next slot of the expert from now on
                first += (n_tokens + pad - 1) // pad * pad
                n_entries += 1
        vec.store_i64(table, n_entries)
        for i in range(n_chosen):
            next_slot = counts + 8 * vec.load_i32(ids + 4 * i)
            vec.store_i32(slots + 4 * i, vec.load_i64(next_slot))
            vec.store_i64(next_slot, vec.load_i64(next_slot) + 1)


@kernel
def each_expert(op, thread, n_threads):
    """Run a kernel for each expert in use; every thread has a record of its own."""
    table, patches, n_patches = vec.load_words(op, (EACH.table, EACH.patches, EACH.n_patches))
    record = vec.load_i64(op + EACH.scratch) + EACH_BYTES * thread
    code = vec.load_i64(op + EACH.kernel)
    for i in range(vec.load_i64(table)):
        entry = table + EXPERT_BYTES * (i + 1)
        number, first = vec.load_words(entry, (EXPERT.number, EXPERT.first))
        for word in range(8, EACH.kernel, 8):
            vec.store_i64(record + word, vec.load_i64(op + word))
        vec.store_i64(record, entry)
        for p in range(n_patches):
            patch = patches + 32 * p
            word_address = record + vec.load_i64(patch)
            increment = (
                number * vec.load_i64(patch + 8)
                + first * vec.load_i64(patch + 16)
                + i * vec.load_i64(patch + 24)
            )
            vec.store_i64(word_address, vec.load_i64(word_address) + increment)
        vec.call_kernel(code, record, thread, n_threads)

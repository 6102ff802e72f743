"""Decode, second half of attention: every head's chunks become one result, whatever the cache's
type."""

from engine import simd as vec
from engine.jit import kernel
from engine.kernels.attention import begin_joined, first_seen, join_chunk, leave_joined
from engine.kernels.records import ATTENTION_CHUNK as CHUNK
from engine.kernels.records import CACHE as F
from engine.kernels.records import PARTIAL_HEADER as HEADER
from engine.kernels.records import STEP
from engine.kernels.share import share


@kernel
def join_attention(op, thread, n_threads):
    """Heads are dealt to the threads; ``x`` holds the chunks' results."""
    pos = vec.load_i64(vec.load_i64(op + F.step) + STEP.start_pos)
    head_dim, max_chunks = vec.load_words(op, (F.head_dim, F.max_chunks))
    n_chunks = pos // CHUNK + 1 - first_seen(op, pos) // CHUNK
    part_bytes = 4 * (HEADER + head_dim)
    first, last = share(vec.load_i64(op + F.n_heads), 1, thread, n_threads)
    for head in range(first, last):
        result = vec.load_i64(op + F.x) + head * max_chunks * part_bytes
        out = vec.load_i64(op + F.out) + 4 * head * head_dim
        top, total = begin_joined(op, head, out)
        for chunk in range(n_chunks):
            top, total = join_chunk(top, total, out, result + chunk * part_bytes, head_dim)
        leave_joined(total, out, head_dim, out)

"""Second half of attention in decode: the chunks of every head become one result, for any cache
type."""

from engine import simd as vec
from engine.jit import kernel
from engine.kernels.attention import begin_result, finish_result, first_visible, merge_chunk
from engine.kernels.records import ATTENTION_CHUNK as CHUNK
from engine.kernels.records import CACHE as F
from engine.kernels.records import PARTIAL_HEADER as HEADER
from engine.kernels.records import STEP
from engine.kernels.share import share


@kernel
def merge_attention(op, thread, n_threads):
    """Merge the results of chunks in ``x`` into ``out``; threads share the heads."""
    pos = vec.load_i64(vec.load_i64(op + F.step) + STEP.start_pos)
    head_dim, max_chunks = vec.load_words(op, (F.head_dim, F.max_chunks))
    n_chunks = pos // CHUNK + 1 - first_visible(op, pos) // CHUNK
    part_bytes = 4 * (HEADER + head_dim)
    first, last = share(vec.load_i64(op + F.n_heads), 1, thread, n_threads)
    for head in range(first, last):
        result = vec.load_i64(op + F.x) + head * max_chunks * part_bytes
        out = vec.load_i64(op + F.out) + 4 * head * head_dim
        top, total = begin_result(op, head, out)
        for chunk in range(n_chunks):
            top, total = merge_chunk(top, total, out, result + chunk * part_bytes, head_dim)
        finish_result(total, out, head_dim, out)

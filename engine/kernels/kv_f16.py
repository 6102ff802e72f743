"""The cache as halves: K in tiles ``[position/8][head_dim][8]``, V in rows ``[position][head_dim]``."""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.attend_parts import attend_parts
from engine.kernels.attend_tokens import attend_tokens
from engine.kernels.attention import UNSCALED
from engine.kernels.store_kv import store_heads

BITS = 16


@inner
def load_k(tile, scales, i):
    """Element i of eight positions."""
    return vec.load_f16x8(tile + 16 * i)


@inner
def load_v(row, scales, i):
    """Eight elements of one position, from i on."""
    return vec.load_f16x8(row + 2 * i)


@inner
def store_head(x, head_dim, at, step, scales, scale_step):
    """Write one position of one head."""
    for i in range(head_dim):
        vec.store_f16(at + 2 * step * i, vec.load_f32(x + 4 * i))


@kernel
def store(op, thread, n_threads):
    """Write k and v of the step's tokens."""
    store_heads(store_head, BITS, UNSCALED, store_head, BITS, UNSCALED, op, thread, n_threads)


@kernel
def attention_parts(op, thread, n_threads):
    """Attention of one token, up to partial results."""
    attend_parts((BITS, UNSCALED, load_k, BITS, UNSCALED, load_v), op, thread, n_threads)


@kernel
def attention(op, thread, n_threads):
    """Attention of a block of tokens."""
    attend_tokens((BITS, UNSCALED, load_k, BITS, UNSCALED, load_v), op, thread, n_threads)

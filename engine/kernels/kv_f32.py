"""The cache as float32: K in tiles ``[position/8][head_dim][8]``, V in rows ``[position][head_dim]``."""

from engine.jit import inner, kernel
from engine.kernels.attention import UNSCALED, attend_parts, attend_tokens
from engine.kernels.store_kv import store_heads
from engine.simd import load_f32, load_f32x8, store_f32

ITEM_BYTES = 4


@inner
def scale_k(acc, scale_at):
    """Floats have no scales."""
    return acc


@inner
def load_v(at, scale_at):
    """Eight elements of one position."""
    return load_f32x8(at)


@inner
def store_head(k, v, head_dim, k_at, v_at, k_scales, v_scales):
    """Write one position of one head; its K elements lie eight apart."""
    for i in range(head_dim):
        store_f32(k_at + 8 * ITEM_BYTES * i, load_f32(k + 4 * i))
        store_f32(v_at + ITEM_BYTES * i, load_f32(v + 4 * i))


@kernel
def store(op, thread, n_threads):
    """Write k and v of the step's tokens."""
    store_heads(store_head, ITEM_BYTES, UNSCALED, op, thread, n_threads)


@kernel
def attention_parts(op, thread, n_threads):
    """Attention of one token, up to partial results."""
    attend_parts((load_f32x8, scale_k, load_v, ITEM_BYTES, UNSCALED), op, thread, n_threads)


@kernel
def attention(op, thread, n_threads):
    """Attention of a block of tokens."""
    attend_tokens((load_f32x8, scale_k, load_v, ITEM_BYTES, UNSCALED), op, thread, n_threads)

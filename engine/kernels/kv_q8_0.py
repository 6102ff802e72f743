"""The cache as int8 in groups of 32 elements, scales apart so that loads stay aligned.

K bytes in tiles ``[position/8][head_dim][8]`` with scales ``[position/8][head_dim/32][8]`` f32; V bytes in rows
``[position][head_dim]`` with scales ``[position][head_dim/32]`` f32. The arithmetic is Q8_0's, the layout is ours.
"""

from engine.jit import inner, kernel
from engine.kernels.attention import attend_parts, attend_tokens
from engine.kernels.quantize_activations import largest
from engine.kernels.store_kv import store_heads
from engine.simd import (
    fmul,
    load_f32,
    load_f32x8,
    load_i8x8_as_f32,
    round_to_f16,
    splat_f32x8,
    store_f32,
    store_i8,
)

ITEM_BYTES, BLOCK = 1, 32


@inner
def scale_k(acc, scale_at):
    """Eight positions' scales of one group."""
    return fmul(acc, load_f32x8(scale_at))


@inner
def load_v(at, scale_at):
    """Eight elements of one position, scaled."""
    return fmul(load_i8x8_as_f32(at), splat_f32x8(load_f32(scale_at)))


@inner
def store_group(x, at, step, scale_at):
    """Quantise 32 elements; neighbours are written ``step`` bytes apart."""
    top = largest(x, BLOCK)
    store_f32(scale_at, round_to_f16(top / 127.0))
    inverse = 127.0 / top if top > 0.0 else 0.0
    for i in range(BLOCK):
        store_i8(at + step * i, round(load_f32(x + 4 * i) * inverse))


@inner
def store_head(k, v, head_dim, k_at, v_at, k_scales, v_scales):
    """Write one position of one head."""
    for g in range(head_dim // BLOCK):
        i = BLOCK * g
        store_group(k + 4 * i, k_at + 8 * i, 8, k_scales + 32 * g)
        store_group(v + 4 * i, v_at + i, 1, v_scales + 4 * g)


@kernel
def store(op, thread, n_threads):
    """Write k and v of the step's tokens."""
    store_heads(store_head, ITEM_BYTES, BLOCK, op, thread, n_threads)


@kernel
def attention_parts(op, thread, n_threads):
    """Attention of one token, up to partial results."""
    attend_parts((load_i8x8_as_f32, scale_k, load_v, ITEM_BYTES, BLOCK), op, thread, n_threads)


@kernel
def attention(op, thread, n_threads):
    """Attention of a block of tokens."""
    attend_tokens((load_i8x8_as_f32, scale_k, load_v, ITEM_BYTES, BLOCK), op, thread, n_threads)

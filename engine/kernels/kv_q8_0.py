"""The cache as int8 in groups of 32 elements, scales apart so that loads stay aligned.

K bytes in tiles ``[position/8][head_dim][8]`` with scales ``[position/8][head_dim/32][8]`` f32; V bytes in rows
``[position][head_dim]`` with scales ``[position][head_dim/32]`` f32. The arithmetic is Q8_0's without the rounding of
scales, the layout is ours. Heads come here rotated (``hadamard.py``).
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.attend_parts import attend_parts
from engine.kernels.attend_tokens import attend_tokens
from engine.kernels.quantize_activations import largest
from engine.kernels.store_kv import store_heads

BITS, BLOCK = 8, 32


@inner
def load_k(tile, scales, i):
    """Element i of eight positions, scaled."""
    return vec.fmul(vec.load_i8x8_as_f32(tile + 8 * i), vec.load_f32x8(scales + (i >> 5 << 5)))


@inner
def load_v(row, scales, i):
    """Eight elements of one position from i on, scaled."""
    return vec.fmul(vec.load_i8x8_as_f32(row + i), vec.splat_f32x8(vec.load_f32(scales + 4 * (i >> 5))))


@inner
def store_head(x, head_dim, at, step, scales, scale_step):
    """Write one position of one head."""
    for g in range(head_dim // BLOCK):
        x_at, to = x + 4 * BLOCK * g, at + step * BLOCK * g
        top = largest(x_at, BLOCK)
        vec.store_f32(scales + scale_step * g, top / 127.0)
        inverse = 127.0 / top if top > 0.0 else 0.0
        for i in range(BLOCK):
            vec.store_i8(to + step * i, round(vec.load_f32(x_at + 4 * i) * inverse))


@kernel
def store(op, thread, n_threads):
    """Write k and v of the step's tokens."""
    store_heads(store_head, BITS, BLOCK, store_head, BITS, BLOCK, op, thread, n_threads)


@kernel
def attention_parts(op, thread, n_threads):
    """Attention of one token, up to partial results."""
    attend_parts((BITS, BLOCK, load_k, BITS, BLOCK, load_v), op, thread, n_threads)


@kernel
def attention(op, thread, n_threads):
    """Attention of a block of tokens."""
    attend_tokens((BITS, BLOCK, load_k, BITS, BLOCK, load_v), op, thread, n_threads)

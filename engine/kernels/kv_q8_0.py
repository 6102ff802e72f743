"""The cache as int8 in groups of 32 elements, scales apart so that loads stay aligned.

K bytes in tiles ``[position/8][head_dim][8]`` with scales ``[position/8][head_dim/32][8]`` f32; V
bytes in rows ``[position][head_dim]`` with scales ``[position][head_dim/32]`` f32. The arithmetic
is Q8_0's without the rounding of scales, the layout is ours. Heads come here rotated
(``hadamard.py``).
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.cache_type import CacheLayout, cache_kernels
from engine.kernels.quantize_activations import largest

BLOCK = 32


@inner
def load_k(tile, scales, i):
    """Element i of eight positions, scaled."""
    return vec.fmul(vec.load_i8x8_as_f32(tile + 8 * i), vec.load_f32x8(scales + (i >> 5 << 5)))


@inner
def load_v(row, scales, i):
    """Eight elements of one position from i on, scaled."""
    return vec.fmul(
        vec.load_i8x8_as_f32(row + i), vec.splat_f32x8(vec.load_f32(scales + 4 * (i >> 5)))
    )


@inner
def store_head(x, head_dim, at, step, scales, scale_step):
    """Write one position of one head."""
    for g in range(head_dim // BLOCK):
        x_at = x + 4 * BLOCK * g
        to = at + step * BLOCK * g
        top = largest(x_at, BLOCK)
        vec.store_f32(scales + scale_step * g, top / 127.0)
        inverse = 127.0 / top if top > 0.0 else 0.0
        for i in range(BLOCK):
            vec.store_i8(to + step * i, round(vec.load_f32(x_at + 4 * i) * inverse))


keys = CacheLayout(8, BLOCK, load_k, store_head)
values = CacheLayout(8, BLOCK, load_v, store_head)
store, attention_parts, attention = cache_kernels(__name__, keys, values)

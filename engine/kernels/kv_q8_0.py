"""KV cache of int8 in groups of 32 elements, with f32 scales in arrays of their own.

K is in tiles ``[position/8][head_dim][8]`` with scales ``[position/8][head_dim/32][8]``, V in rows
``[position][head_dim]`` with scales ``[position][head_dim/32]``. Separate scales keep loads
aligned. The arithmetic is that of Q8_0 without rounded scales. Heads are rotated before
(``hadamard.py``).
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.cache_type import CacheLayout, cache_kernels
from engine.kernels.quantize_activations import largest

BLOCK = 32


@inner
def load_k(tile, scales, i):
    """Load element i of eight positions, scaled."""
    return vec.fmul(vec.load_i8x8_as_f32(tile + 8 * i), vec.load_f32x8(scales + (i >> 5 << 5)))


@inner
def load_v(row, scales, i):
    """Load elements i to i + 7 of one position, scaled."""
    return vec.fmul(
        vec.load_i8x8_as_f32(row + i), vec.splat_f32x8(vec.load_f32(scales + 4 * (i >> 5)))
    )


@inner
def store_head(x, head_dim, address, step, scales, scale_step):
    """Write one position of one head."""
    for g in range(head_dim // BLOCK):
        source = x + 4 * BLOCK * g
        target = address + step * BLOCK * g
        top = largest(source, BLOCK)
        vec.store_f32(scales + scale_step * g, top / 127.0)
        inverse = 127.0 / top if top > 0.0 else 0.0
        for i in range(BLOCK):
            vec.store_i8(target + step * i, round(vec.load_f32(source + 4 * i) * inverse))


keys = CacheLayout(8, BLOCK, load_k, store_head)
values = CacheLayout(8, BLOCK, load_v, store_head)
store, attention_parts, attention = cache_kernels(__name__, keys, values)

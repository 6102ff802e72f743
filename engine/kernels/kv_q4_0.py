"""The cache as numbers of four bits, -8 to 7, in groups of 32 elements; layout and scales as in
``kv_q8_0.py``.

A byte holds elements j and j + 8 of sixteen, the first in its lower half, so that eight neighbours
come out of eight bytes by shifts. The scale is an eighth of what lies furthest from 0, with the
sign that makes this -8 (GGML's Q4_0).
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.cache_type import CacheLayout, cache_kernels
from engine.kernels.quantize_activations import largest

BLOCK = 32


@inner
def byte_of(i):
    """Which byte of a position holds element i; its half is the lower one where i & 8 is 0."""
    return (i >> 4 << 3) + (i & 7)


@inner
def load_k(tile, scales, i):
    """Element i of eight positions, scaled."""
    return vec.fmul(
        vec.load_nibbles_as_f32(tile + 8 * byte_of(i), i >> 1 & 4),
        vec.load_f32x8(scales + (i >> 5 << 5)),
    )


@inner
def load_v(row, scales, i):
    """Eight elements of one position from i on, scaled."""
    return vec.fmul(
        vec.load_nibbles_as_f32(row + byte_of(i), i >> 1 & 4),
        vec.splat_f32x8(vec.load_f32(scales + 4 * (i >> 5))),
    )


@inner
def nibble(x, inverse):
    """A number of 0 to 15: the lower four bits of -8 to 7."""
    return min(7, round(x * inverse)) & 15


@inner
def store_head(x, head_dim, at, step, scales, scale_step):
    """Write one position of one head."""
    for g in range(head_dim // BLOCK):
        x_at = x + 4 * BLOCK * g
        to = at + step * BLOCK // 2 * g
        top = largest(x_at, BLOCK)
        highest = vec.load_f32(x_at)
        for i in range(1, BLOCK):
            highest = max(highest, vec.load_f32(x_at + 4 * i))
        furthest = top if highest == top else -top
        vec.store_f32(scales + scale_step * g, furthest / -8.0)
        inverse = -8.0 / furthest if top > 0.0 else 0.0
        for i in range(BLOCK // 2):
            low = x_at + 4 * (i + (i & 8))
            high = x_at + 4 * (i + (i & 8) + 8)
            vec.store_i8(
                to + step * i,
                nibble(vec.load_f32(low), inverse) | nibble(vec.load_f32(high), inverse) << 4,
            )


keys = CacheLayout(4, BLOCK, load_k, store_head)
values = CacheLayout(4, BLOCK, load_v, store_head)
store, attention_parts, attention = cache_kernels(__name__, keys, values)

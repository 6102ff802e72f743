"""KV cache of 4-bit numbers, -8 to 7, in groups of 32 elements; layout and scales as in
``kv_q8_0.py``.

A byte holds elements j and j + 8 of sixteen, the first in its low nibble, so shifts turn eight
bytes into eight neighbouring elements. As in GGML's Q4_0, the element furthest from 0 becomes -8:
the scale is this element / -8.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.cache_type import CacheLayout, cache_kernels
from engine.kernels.quantize_activations import largest

BLOCK = 32


@inner
def byte_of(i):
    """Return the byte of a position that holds element i; i & 8 selects the nibble."""
    return (i >> 4 << 3) + (i & 7)


@inner
def load_k(tile, scales, i):
    """Load element i of eight positions, scaled."""
    return vec.fmul(
        vec.load_nibbles_as_f32(tile + 8 * byte_of(i), i >> 1 & 4),
        vec.load_f32x8(scales + (i >> 5 << 5)),
    )


@inner
def load_v(row, scales, i):
    """Load elements i to i + 7 of one position, scaled."""
    return vec.fmul(
        vec.load_nibbles_as_f32(row + byte_of(i), i >> 1 & 4),
        vec.splat_f32x8(vec.load_f32(scales + 4 * (i >> 5))),
    )


@inner
def nibble(x, inverse):
    """Return x * inverse as a number from 0 to 15: the lower four bits of -8 to 7."""
    return min(7, round(x * inverse)) & 15


@inner
def store_head(x, head_dim, address, step, scales, scale_step):
    """Write one position of one head."""
    for g in range(head_dim // BLOCK):
        source = x + 4 * BLOCK * g
        target = address + step * BLOCK // 2 * g
        top = largest(source, BLOCK)
        highest = vec.load_f32(source)
        for i in range(1, BLOCK):
            highest = max(highest, vec.load_f32(source + 4 * i))
        furthest = top if highest == top else -top
        vec.store_f32(scales + scale_step * g, furthest / -8.0)
        inverse = -8.0 / furthest if top > 0.0 else 0.0
        for i in range(BLOCK // 2):
            low = source + 4 * (i + (i & 8))
            high = source + 4 * (i + (i & 8) + 8)
            vec.store_i8(
                target + step * i,
                nibble(vec.load_f32(low), inverse) | nibble(vec.load_f32(high), inverse) << 4,
            )


keys = CacheLayout(4, BLOCK, load_k, store_head)
values = CacheLayout(4, BLOCK, load_v, store_head)
store, attention_parts, attention = cache_kernels(__name__, keys, values)

"""KV cache of f16: K in tiles ``[position/8][head_dim][8]``, V in rows ``[position][head_dim]``."""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.attention import UNSCALED
from engine.kernels.cache_type import CacheLayout, cache_kernels


@inner
def load_k(tile, scales, i):
    """Load element i of eight positions."""
    return vec.load_f16x8(tile + 16 * i)


@inner
def load_v(row, scales, i):
    """Load elements i to i + 7 of one position."""
    return vec.load_f16x8(row + 2 * i)


@inner
def store_head(x, head_dim, address, step, scales, scale_step):
    """Write one position of one head."""
    for i in range(head_dim):
        vec.store_f16(address + 2 * step * i, vec.load_f32(x + 4 * i))


keys = CacheLayout(16, UNSCALED, load_k, store_head)
values = CacheLayout(16, UNSCALED, load_v, store_head)
store, attention_parts, attention = cache_kernels(__name__, keys, values)

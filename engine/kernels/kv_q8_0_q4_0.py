"""KV cache with keys as in ``kv_q8_0.py`` and values as in ``kv_q4_0.py``."""

from engine.kernels.cache_type import cache_kernels
from engine.kernels.kv_q4_0 import values
from engine.kernels.kv_q8_0 import keys

store, attention_parts, attention = cache_kernels(__name__, keys, values)

"""The cache with keys of ``kv_q8_0.py`` and values of ``kv_q4_0.py``, in their layouts."""

from engine.kernels.cache_type import cache_kernels
from engine.kernels.kv_q4_0 import values
from engine.kernels.kv_q8_0 import keys

store, attention_parts, attention = cache_kernels(__name__, keys, values)

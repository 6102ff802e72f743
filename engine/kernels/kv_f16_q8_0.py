"""The cache with keys of ``kv_f16.py`` and values of ``kv_q8_0.py``, in their layouts."""

from engine.kernels.cache_type import cache_kernels
from engine.kernels.kv_f16 import keys
from engine.kernels.kv_q8_0 import values

store, attention_parts, attention = cache_kernels(__name__, keys, values)

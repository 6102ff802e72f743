"""Argument records of kernels that only encoders of pictures run. Imports no numba."""

from engine.kernels.records import record

CLAMP_BETWEEN = record("step x out n low high")
"""out [tokens, n] = x, limited to the range from ``low`` to ``high``, f32; ``out`` may be ``x``."""

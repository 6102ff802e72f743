"""GeGLU's gate (Shazeer 2020, arXiv:2002.05202), with the approximation of GELU by tanh (arXiv:1606.08415)."""

import math

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.exp import exp_lanes
from engine.kernels.swiglu import gated

LINEAR, CUBIC = -2 * (2 / math.pi) ** 0.5, -2 * (2 / math.pi) ** 0.5 * 0.044715
"""0.5 (1 + tanh(u)) is 1 / (1 + exp(-2 u)); these are the coefficients of -2 u."""


@inner
def gelu_lanes(x):
    """x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    u = vec.fmul(x, vec.fma(vec.fmul(x, x), vec.splat_like(x, CUBIC), vec.splat_like(x, LINEAR)))
    return vec.fdiv(x, vec.fadd(vec.splat_like(x, 1.0), exp_lanes(u)))


@inner
def gelu_f32(x):
    """The same of one number."""
    return x / (1.0 + math.exp(x * (x * x * CUBIC + LINEAR)))


@inner
def gelu_times_lanes(x, up):
    """gelu(x) * up."""
    return vec.fmul(gelu_lanes(x), up)


@inner
def gelu_times_f32(x, up):
    """The same of one number."""
    return gelu_f32(x) * up


@kernel
def geglu(op, thread, n_threads):
    """gate = gelu(gate) * up."""
    gated(gelu_times_lanes, gelu_times_f32, op, thread, n_threads)

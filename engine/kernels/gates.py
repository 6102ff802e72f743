"""Activation functions, f32, in place: gate = f(gate) * up, or up = f(up) for layers without a
gate.

SwiGLU, GeGLU and ReGLU: Shazeer 2020, arXiv:2002.05202. Threads share the elements. Elements that
fill no register are computed in a register of their own, so every element is computed alike.
"""

import math

from engine import simd as vec
from engine.jit import inner, kernel, kernels_of
from engine.kernels.exp import exp_lanes
from engine.kernels.records import GATE as F
from engine.kernels.records import XIELU
from engine.kernels.share import n_tokens_of, share

LINEAR = -2 * (2 / math.pi) ** 0.5
CUBIC = -2 * (2 / math.pi) ** 0.5 * 0.044715
"""Coefficients of -2 u, since 0.5 (1 + tanh(u)) is 1 / (1 + exp(-2 u))."""
STEEPNESS = 1.702
LIMIT = 7.0
"""Bound of GPT-OSS's gate."""
STEEP = -1e38
"""Factor that turns a number below zero into one above 1.

Only subnormal numbers are too small for that.
"""


def gated(f):
    """Make a kernel.

    Args:
        f: (gate, up) -> new ``gate``, registers of f32. A function without a gate ignores
            ``up``.
    """

    def gate(op, thread, n_threads):
        gate, up, n, up_stride = vec.load_words(op, (F.gate, F.up, F.n, F.up_stride))
        first, last = share(n, 256, thread, n_threads)
        vector_end = last - last % vec.LANES
        for t in range(n_tokens_of(op)):
            for i in range(first, vector_end, vec.LANES):
                gate_address = gate + 4 * (t * n + i)
                up_address = up + 4 * (t * up_stride + i)
                vec.store_lanes(
                    gate_address, f(vec.load_lanes(gate_address), vec.load_lanes(up_address))
                )
            for i in range(vector_end, last):
                gate_address = gate + 4 * (t * n + i)
                up_address = up + 4 * (t * up_stride + i)
                value = f(
                    vec.splat_f32x8(vec.load_f32(gate_address)),
                    vec.splat_f32x8(vec.load_f32(up_address)),
                )
                vec.store_f32(gate_address, vec.first_lane(value))

    return gate


@inner
def silu_times(x, up):
    """Return x / (1 + exp(-x)) * up."""
    return vec.fmul(
        vec.fdiv(
            x, vec.fadd(vec.splat_like(x, 1.0), exp_lanes(vec.fsub(vec.splat_like(x, 0.0), x)))
        ),
        up,
    )


@inner
def sigmoid_times(x, up):
    """Return 1 / (1 + exp(-x)) * up."""
    return vec.fdiv(
        up, vec.fadd(vec.splat_like(x, 1.0), exp_lanes(vec.fsub(vec.splat_like(x, 0.0), x)))
    )


@inner
def gelu_of(x):
    """Return x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3).

    This is GELU approximated by tanh (arXiv:1606.08415).
    """
    u = vec.fmul(x, vec.fma(vec.fmul(x, x), vec.splat_like(x, CUBIC), vec.splat_like(x, LINEAR)))
    return vec.fdiv(x, vec.fadd(vec.splat_like(x, 1.0), exp_lanes(u)))


@inner
def gelu_times(x, up):
    """Return gelu(x) * up."""
    return vec.fmul(gelu_of(x), up)


@inner
def relu_times(x, up):
    """Return max(x, 0) * up."""
    return vec.fmul(vec.fmax(vec.splat_like(x, 0.0), x), up)


@inner
def clamped_times(gate, up):
    """Return g / (1 + exp(-1.702 g)) * (u + 1), the gate of GPT-OSS.

    g is at most 7 and u within [-7, 7]; NaN stays NaN.
    """
    gate = vec.fmin(vec.splat_like(gate, LIMIT), gate)
    ones = vec.splat_like(gate, 1.0)
    up = vec.fmax(vec.splat_like(gate, -LIMIT), vec.fmin(vec.splat_like(gate, LIMIT), up))
    return vec.fmul(
        vec.fdiv(gate, vec.fadd(ones, exp_lanes(vec.fmul(gate, vec.splat_like(gate, -STEEPNESS))))),
        vec.fadd(up, ones),
    )


@inner
def gelu_alone(x, up):
    """Return gelu(x)."""
    return gelu_of(x)


@inner
def squared_relu_alone(x, up):
    """Return max(x, 0) squared (So et al. 2021, arXiv:2109.08668)."""
    positive = vec.fmax(vec.splat_like(x, 0.0), x)
    return vec.fmul(positive, positive)


swiglu, sigmoid_gate, geglu, reglu, clamped_swiglu, gelu, squared_relu = kernels_of(
    __name__,
    swiglu=gated(silu_times),
    sigmoid_gate=gated(sigmoid_times),
    geglu=gated(gelu_times),
    reglu=gated(relu_times),
    clamped_swiglu=gated(clamped_times),
    gelu=gated(gelu_alone),
    squared_relu=gated(squared_relu_alone),
)


@inner
def xielu_of(x, positive_factor, negative_factor, slope, bound):
    """Return positive_factor * x^2 for x > 0, negative_factor * (exp(x) - 1 - x) for x < 0, plus
    slope * x.

    exp is computed of min(x, bound).
    """
    zeros = vec.splat_f32x8(0.0)
    ones = vec.splat_f32x8(1.0)
    positive = vec.fmax(zeros, x)
    negative = vec.fmin(zeros, x)
    is_negative = vec.fmin(ones, vec.fmax(zeros, vec.fmul(x, vec.splat_f32x8(STEEP))))
    bend = vec.fmul(
        vec.fsub(vec.fsub(exp_lanes(vec.fmin(bound, negative)), ones), negative), is_negative
    )
    return vec.fma(
        vec.fmul(positive, positive),
        positive_factor,
        vec.fma(bend, negative_factor, vec.fmul(slope, x)),
    )


@kernel
def xielu(op, thread, n_threads):
    """Compute up = xielu(up) (Huang and Schlag 2024, arXiv:2411.13010)."""
    up, n = vec.load_words(op, (XIELU.up, XIELU.n))
    above = vec.splat_f32x8(vec.load_f64(op + XIELU.above))
    below = vec.splat_f32x8(vec.load_f64(op + XIELU.below))
    slope = vec.splat_f32x8(vec.load_f64(op + XIELU.slope))
    bound = vec.splat_f32x8(vec.load_f64(op + XIELU.bound))
    first, last = share(n, 256, thread, n_threads)
    vector_end = last - last % 8
    for t in range(n_tokens_of(op)):
        for address in range(up + 4 * (t * n + first), up + 4 * (t * n + vector_end), 32):
            vec.store_f32x8(address, xielu_of(vec.load_f32x8(address), above, below, slope, bound))
        for address in range(up + 4 * (t * n + vector_end), up + 4 * (t * n + last), 4):
            value = xielu_of(vec.splat_f32x8(vec.load_f32(address)), above, below, slope, bound)
            vec.store_f32(address, vec.first_lane(value))

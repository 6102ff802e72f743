"""GPT-OSS's gate: SwiGLU of clamped values, a steeper sigmoid, and one more than what goes up."""

import math

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.exp import exp_lanes
from engine.kernels.swiglu import gated

STEEPNESS, LIMIT = 1.702, 7.0


@inner
def clamped_lanes(gate, up):
    """g / (1 + exp(-1.702 g)) * (u + 1), g at most 7 and u within [-7, 7]; NaN stays NaN."""
    gate, one = vec.fmin(vec.splat_like(gate, LIMIT), gate), vec.splat_like(gate, 1.0)
    up = vec.fmax(vec.splat_like(gate, -LIMIT), vec.fmin(vec.splat_like(gate, LIMIT), up))
    return vec.fmul(
        vec.fdiv(gate, vec.fadd(one, exp_lanes(vec.fmul(gate, vec.splat_like(gate, -STEEPNESS))))), vec.fadd(up, one)
    )


@inner
def clamped_f32(gate, up):
    """The same of two numbers."""
    gate, up = LIMIT if gate > LIMIT else gate, LIMIT if up > LIMIT else -LIMIT if up < -LIMIT else up
    return gate / (1.0 + math.exp(-STEEPNESS * gate)) * (up + 1.0)


@kernel
def clamped_swiglu(op, thread, n_threads):
    """gate = clamped(gate, up)."""
    gated(clamped_lanes, clamped_f32, op, thread, n_threads)

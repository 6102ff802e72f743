"""SwiGLU's gate (Shazeer 2020, arXiv:2002.05202), and the loop that every gate shares."""

import math

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.exp import exp_lanes
from engine.kernels.records import GATE as F
from engine.kernels.records import STEP
from engine.kernels.share import share


@inner
def gated(lanes, one, op, thread, n_threads):
    """gate = f(gate, up), in place.

    Args:
        lanes, one: f of two registers, and of the elements that are left over.
    """
    gate, up, n, up_stride = (
        vec.load_i64(op + F.gate),
        vec.load_i64(op + F.up),
        vec.load_i64(op + F.n),
        vec.load_i64(op + F.up_stride),
    )
    first, last = share(n, 256, thread, n_threads)
    whole = last - last % vec.LANES
    for t in range(vec.load_i64(vec.load_i64(op + F.step) + STEP.n_tokens)):
        for i in range(first, whole, vec.LANES):
            at, up_at = gate + 4 * (t * n + i), up + 4 * (t * up_stride + i)
            vec.store_lanes(at, lanes(vec.load_lanes(at), vec.load_lanes(up_at)))
        for i in range(whole, last):
            at, up_at = gate + 4 * (t * n + i), up + 4 * (t * up_stride + i)
            vec.store_f32(at, one(vec.load_f32(at), vec.load_f32(up_at)))


@inner
def silu_lanes(x, up):
    """x / (1 + exp(-x)) * up."""
    return vec.fmul(vec.fdiv(x, vec.fadd(vec.splat_like(x, 1.0), exp_lanes(vec.fsub(vec.splat_like(x, 0.0), x)))), up)


@inner
def silu_f32(x, up):
    """The same of one number."""
    return x / (1.0 + math.exp(-x)) * up


@kernel
def swiglu(op, thread, n_threads):
    """gate = silu(gate) * up."""
    gated(silu_lanes, silu_f32, op, thread, n_threads)

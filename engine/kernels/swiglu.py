"""SwiGLU's gate (Shazeer 2020, arXiv:2002.05202), and the loop that every gate shares."""

import math

from engine.jit import inner, kernel
from engine.kernels.exp import exp_lanes
from engine.kernels.records import GATE as F
from engine.kernels.records import STEP
from engine.kernels.share import share
from engine.simd import (
    LANES,
    fadd,
    fdiv,
    fmul,
    fsub,
    load_f32,
    load_i64,
    load_lanes,
    splat_like,
    store_f32,
    store_lanes,
)


@inner
def gated(lanes, one, op, thread, n_threads):
    """gate = f(gate, up), in place.

    Args:
        lanes, one: f of two registers, and of the elements that are left over.
    """
    gate, up, n, up_stride = load_i64(op + F.gate), load_i64(op + F.up), load_i64(op + F.n), load_i64(op + F.up_stride)
    first, last = share(n, 256, thread, n_threads)
    whole = last - last % LANES
    for t in range(load_i64(load_i64(op + F.step) + STEP.n_tokens)):
        for i in range(first, whole, LANES):
            at, up_at = gate + 4 * (t * n + i), up + 4 * (t * up_stride + i)
            store_lanes(at, lanes(load_lanes(at), load_lanes(up_at)))
        for i in range(whole, last):
            at, up_at = gate + 4 * (t * n + i), up + 4 * (t * up_stride + i)
            store_f32(at, one(load_f32(at), load_f32(up_at)))


@inner
def silu_lanes(x, up):
    """x / (1 + exp(-x)) * up."""
    return fmul(fdiv(x, fadd(splat_like(x, 1.0), exp_lanes(fsub(splat_like(x, 0.0), x)))), up)


@inner
def silu_f32(x, up):
    """The same of one number."""
    return x / (1.0 + math.exp(-x)) * up


@kernel
def swiglu(op, thread, n_threads):
    """gate = silu(gate) * up."""
    gated(silu_lanes, silu_f32, op, thread, n_threads)

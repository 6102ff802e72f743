"""The feed-forward function xIELU (Huang and Schlag 2024, arXiv:2411.13010), applied in place."""

import math

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.exp import exp_lanes
from engine.kernels.records import STEP
from engine.kernels.records import XIELU as F
from engine.kernels.share import share

STEEP = -1e38
"""A number below zero times this is above one, but for those that float32 no longer holds in full."""


@inner
def xielu_lanes(x, above, below, slope, bound):
    """The parabola of what is above zero, the exponential of what is below, and the line of both."""
    nought, one = vec.splat_f32x8(0.0), vec.splat_f32x8(1.0)
    positive, negative = vec.fmax(nought, x), vec.fmin(nought, x)
    is_negative = vec.fmin(one, vec.fmax(nought, vec.fmul(x, vec.splat_f32x8(STEEP))))
    bend = vec.fmul(vec.fsub(vec.fsub(exp_lanes(vec.fmin(bound, negative)), one), negative), is_negative)
    return vec.fma(vec.fmul(positive, positive), above, vec.fma(bend, below, vec.fmul(slope, x)))


@inner
def xielu_f32(x, above, below, slope, bound):
    """The same of one number."""
    if x > 0.0:
        return above * x * x + slope * x
    return below * (math.expm1(min(x, bound)) - x) + slope * x


@kernel
def xielu(op, thread, n_threads):
    """up = xielu(up); elements are dealt to the threads as ``activate`` deals them."""
    up, n = vec.load_i64(op + F.up), vec.load_i64(op + F.n)
    above, below = vec.load_f64(op + F.above), vec.load_f64(op + F.below)
    slope, bound = vec.load_f64(op + F.slope), vec.load_f64(op + F.bound)
    eights = vec.splat_f32x8(above), vec.splat_f32x8(below), vec.splat_f32x8(slope), vec.splat_f32x8(bound)
    first, last = share(n, 256, thread, n_threads)
    whole = last - last % 8
    for t in range(vec.load_i64(vec.load_i64(op + F.step) + STEP.n_tokens)):
        for i in range(first, whole, 8):
            at = up + 4 * (t * n + i)
            vec.store_f32x8(at, xielu_lanes(vec.load_f32x8(at), eights[0], eights[1], eights[2], eights[3]))
        for i in range(whole, last):
            at = up + 4 * (t * n + i)
            vec.store_f32(at, xielu_f32(vec.load_f32(at), above, below, slope, bound))

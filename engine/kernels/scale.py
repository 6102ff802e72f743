"""A vector times a number, and a vector held within bounds, by tanh or cut."""

import math

from engine.jit import inner, kernel
from engine.kernels.exp import exp_lanes
from engine.kernels.records import SCALE as F
from engine.kernels.records import STEP
from engine.kernels.share import share
from engine.simd import (
    fadd,
    fdiv,
    fmax,
    fmin,
    fmul,
    fsub,
    load_f32,
    load_f32x8,
    load_f64,
    load_i64,
    splat_f32x8,
    store_f32,
    store_f32x8,
)


@kernel
def scale(op, thread, n_threads):
    """x *= factor; tokens are dealt to the threads as ``embed`` deals them, so no barrier lies between."""
    x, n, factor = load_i64(op + F.x), load_i64(op + F.n), load_f64(op + F.factor)
    if load_i64(op + F.by) != 0:
        factor *= load_f32(load_i64(op + F.by))
    factors = splat_f32x8(factor)
    first, last = share(load_i64(load_i64(op + F.step) + STEP.n_tokens), 1, thread, n_threads)
    for at in range(x + 4 * first * n, x + 4 * last * n, 32):
        store_f32x8(at, fmul(load_f32x8(at), factors))


@inner
def capped(x, cap):
    """cap * tanh(x / cap) of eight numbers, as cap - 2 cap / (1 + exp(2 x / cap))."""
    top = splat_f32x8(cap)
    power = exp_lanes(fmul(x, splat_f32x8(2.0 / cap)))
    return fsub(top, fdiv(fadd(top, top), fadd(splat_f32x8(1.0), power)))


@kernel
def soft_cap(op, thread, n_threads):
    """x = cap * tanh(x / cap)."""
    x, n, cap = load_i64(op + F.x), load_i64(op + F.n), load_f64(op + F.factor)
    first, last = share(n, 256, thread, n_threads)
    whole = last - last % 8
    for t in range(load_i64(load_i64(op + F.step) + STEP.n_tokens)):
        row = x + 4 * t * n
        for i in range(first, whole, 8):
            store_f32x8(row + 4 * i, capped(load_f32x8(row + 4 * i), cap))
        for i in range(whole, last):
            store_f32(row + 4 * i, cap * math.tanh(load_f32(row + 4 * i) / cap))


@kernel
def clamp(op, thread, n_threads):
    """x = max(-bound, min(x, bound)) of n elements, a multiple of 8."""
    x, n, bound = load_i64(op + F.x), load_i64(op + F.n), load_f64(op + F.factor)
    low, high = splat_f32x8(-bound), splat_f32x8(bound)
    first, last = share(n * load_i64(load_i64(op + F.step) + STEP.n_tokens), 256, thread, n_threads)
    for i in range(first, last, 8):
        store_f32x8(x + 4 * i, fmax(low, fmin(high, load_f32x8(x + 4 * i))))

"""Vectors multiplied by a number, capped by tanh or clamped, f32, in place."""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.exp import exp_lanes
from engine.kernels.records import SCALE as F
from engine.kernels.share import n_tokens_of, share


@kernel
def scale(op, thread, n_threads):
    """Compute x *= factor.

    Threads share the tokens as in ``embed``, so no barrier is needed in between.
    """
    x, n, factor_address = vec.load_words(op, (F.x, F.n, F.by))
    factor = vec.load_f64(op + F.factor)
    if factor_address != 0:
        factor *= vec.load_f32(factor_address)
    factors = vec.splat_f32x8(factor)
    first, last = share(n_tokens_of(op), 1, thread, n_threads)
    for address in range(x + 4 * first * n, x + 4 * last * n, 32):
        vec.store_f32x8(address, vec.fmul(vec.load_f32x8(address), factors))


@inner
def capped(x, cap):
    """Return cap * tanh(x / cap) of eight f32, as cap - 2 cap / (1 + exp(2 x / cap))."""
    top = vec.splat_f32x8(cap)
    power = exp_lanes(vec.fmul(x, vec.splat_f32x8(2.0 / cap)))
    return vec.fsub(top, vec.fdiv(vec.fadd(top, top), vec.fadd(vec.splat_f32x8(1.0), power)))


@kernel
def soft_cap(op, thread, n_threads):
    """Compute x = cap * tanh(x / cap)."""
    x = vec.load_i64(op + F.x)
    n = vec.load_i64(op + F.n)
    cap = vec.load_f64(op + F.factor)
    first, last = share(n, 256, thread, n_threads)
    vector_end = last - last % 8
    for t in range(n_tokens_of(op)):
        row = x + 4 * t * n
        for i in range(first, vector_end, 8):
            vec.store_f32x8(row + 4 * i, capped(vec.load_f32x8(row + 4 * i), cap))
        for i in range(vector_end, last):
            value = vec.splat_f32x8(vec.load_f32(row + 4 * i))
            vec.store_f32(row + 4 * i, vec.first_lane(capped(value, cap)))


@kernel
def clamp(op, thread, n_threads):
    """Compute x = max(-bound, min(x, bound)) of n elements; n is a multiple of 8."""
    x = vec.load_i64(op + F.x)
    n = vec.load_i64(op + F.n)
    bound = vec.load_f64(op + F.factor)
    low = vec.splat_f32x8(-bound)
    high = vec.splat_f32x8(bound)
    first, last = share(n * n_tokens_of(op), 256, thread, n_threads)
    for i in range(first, last, 8):
        vec.store_f32x8(x + 4 * i, vec.fmax(low, vec.fmin(high, vec.load_f32x8(x + 4 * i))))

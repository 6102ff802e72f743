"""Activation functions and limits that only encoders of pictures have, f32."""

from engine import simd as vec
from engine.jit import inner, kernel, kernels_of
from engine.kernels.exp import exp_lanes
from engine.kernels.gates import STEEPNESS, gated
from engine.kernels.picture_records import CLAMP_BETWEEN as F
from engine.kernels.share import n_tokens_of, share


@inner
def quick_gelu_of(x):
    """Return x / (1 + exp(-1.702 x)), GELU approximated by a sigmoid (arXiv:1606.08415)."""
    power = exp_lanes(vec.fmul(x, vec.splat_like(x, -STEEPNESS)))
    return vec.fdiv(x, vec.fadd(vec.splat_like(x, 1.0), power))


@inner
def quick_gelu_times(x, up):
    """Return the function of x, times up."""
    return vec.fmul(quick_gelu_of(x), up)


@inner
def quick_gelu_alone(x, up):
    """Return the function of x."""
    return quick_gelu_of(x)


quick_geglu, quick_gelu = kernels_of(
    __name__, quick_geglu=gated(quick_gelu_times), quick_gelu=gated(quick_gelu_alone)
)


@kernel
def clamp_between(op, thread, n_threads):
    """Compute out = max(low, min(x, high)) of n elements; n is a multiple of 8."""
    x, out, n = vec.load_words(op, (F.x, F.out, F.n))
    low = vec.splat_f32x8(vec.load_f64(op + F.low))
    high = vec.splat_f32x8(vec.load_f64(op + F.high))
    first, last = share(n * n_tokens_of(op), 256, thread, n_threads)
    for offset in range(4 * first, 4 * last, 32):
        clamped = vec.fmax(low, vec.fmin(high, vec.load_f32x8(x + offset)))
        vec.store_f32x8(out + offset, clamped)

"""Root mean square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import RMSNORM as F
from engine.kernels.records import STEP
from engine.kernels.share import share


@inner
def inverse_rms(x, dim, eps):
    """1 / sqrt(mean(x^2) + eps) of ``dim`` f32, a multiple of 8."""
    even, odd = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    for i in range(0, dim - 8, 16):
        low, high = vec.load_f32x8(x + 4 * i), vec.load_f32x8(x + 4 * i + 32)
        even, odd = vec.fma(low, low, even), vec.fma(high, high, odd)
    if dim & 8:
        last = vec.load_f32x8(x + 4 * (dim - 8))
        even = vec.fma(last, last, even)
    return 1.0 / (vec.sum_f32x8(vec.fadd(even, odd)) / dim + eps) ** 0.5


@inner
def scale_by(x, weight, inverse, out, first, last):
    """out = x * inverse * weight for elements first <= i < last."""
    factor = vec.splat_f32x8(inverse)
    for i in range(first, last, 8):
        vec.store_f32x8(
            out + 4 * i, vec.fmul(vec.fmul(vec.load_f32x8(x + 4 * i), factor), vec.load_f32x8(weight + 4 * i))
        )


@kernel
def rmsnorm(op, thread, n_threads):
    """Every thread finds the root of every token and writes its own share of elements: no barrier in between."""
    step, dim = vec.load_i64(op + F.step), vec.load_i64(op + F.dim)
    x, out, weight, eps = (
        vec.load_i64(op + F.x),
        vec.load_i64(op + F.out),
        vec.load_i64(op + F.weight),
        vec.load_f64(op + F.eps),
    )
    first, last = share(dim, 256, thread, n_threads)
    for t in range(vec.load_i64(step + STEP.n_tokens)):
        inverse = inverse_rms(x + 4 * t * dim, dim, eps)
        scale_by(x + 4 * t * dim, weight, inverse, out + 4 * t * dim, first, last)


@kernel
def biased_rmsnorm(op, thread, n_threads):
    """The same with a bias added."""
    step, dim = vec.load_i64(op + F.step), vec.load_i64(op + F.dim)
    x, out, weight, eps = (
        vec.load_i64(op + F.x),
        vec.load_i64(op + F.out),
        vec.load_i64(op + F.weight),
        vec.load_f64(op + F.eps),
    )
    bias = vec.load_i64(op + F.bias)
    first, last = share(dim, 256, thread, n_threads)
    for t in range(vec.load_i64(step + STEP.n_tokens)):
        row = 4 * t * dim
        factor = vec.splat_f32x8(inverse_rms(x + row, dim, eps))
        for at in range(4 * first, 4 * last, 32):
            normed = vec.fmul(vec.load_f32x8(x + row + at), factor)
            vec.store_f32x8(out + row + at, vec.fma(normed, vec.load_f32x8(weight + at), vec.load_f32x8(bias + at)))

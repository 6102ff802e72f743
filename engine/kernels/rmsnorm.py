"""Root mean square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467), f32 [tokens, dim].

out = x / sqrt(mean(x^2) + eps) * weight + bias.
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import RMSNORM as F
from engine.kernels.share import n_tokens_of, share


@inner
def inverse_rms(x, dim, eps):
    """Return 1 / sqrt(mean(x^2) + eps) of ``dim`` f32; ``dim`` is a multiple of 8."""
    even = vec.splat_f32x8(0.0)
    odd = vec.splat_f32x8(0.0)
    for i in range(0, dim - 8, 16):
        low = vec.load_f32x8(x + 4 * i)
        high = vec.load_f32x8(x + 4 * i + 32)
        even = vec.fma(low, low, even)
        odd = vec.fma(high, high, odd)
    if dim & 8:
        last = vec.load_f32x8(x + 4 * (dim - 8))
        even = vec.fma(last, last, even)
    return 1.0 / (vec.sum_f32x8(vec.fadd(even, odd)) / dim + eps) ** 0.5


@inner
def scale_by(x, weight, bias, inverse, out, first, last):
    """Compute out = x * inverse * weight + bias for elements first <= i < last.

    There is no bias if its address is 0.
    """
    factor = vec.splat_f32x8(inverse)
    for offset in range(4 * first, 4 * last, 32):
        normed = vec.fmul(vec.load_f32x8(x + offset), factor)
        scale = vec.load_f32x8(weight + offset)
        if bias != 0:
            vec.store_f32x8(out + offset, vec.fma(normed, scale, vec.load_f32x8(bias + offset)))
        else:
            vec.store_f32x8(out + offset, vec.fmul(normed, scale))


@kernel
def rmsnorm(op, thread, n_threads):
    """Normalise every token.

    Every thread computes the root mean square of every token and writes its own share of elements,
    so no barrier is needed in between.
    """
    dim, x, out, weight, bias = vec.load_words(op, (F.dim, F.x, F.out, F.weight, F.bias))
    eps = vec.load_f64(op + F.eps)
    first, last = share(dim, 256, thread, n_threads)
    for t in range(n_tokens_of(op)):
        inverse = inverse_rms(x + 4 * t * dim, dim, eps)
        scale_by(x + 4 * t * dim, weight, bias, inverse, out + 4 * t * dim, first, last)

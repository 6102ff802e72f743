"""Layer normalisation (Ba et al. 2016, arXiv:1607.06450), f32 [tokens, dim].

out = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias.
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import RMSNORM as F
from engine.kernels.records import ROPE
from engine.kernels.share import n_tokens_of, share


@inner
def mean_of(x, dim):
    """Return the mean of ``dim`` f32; ``dim`` is a multiple of 8."""
    total = vec.splat_f32x8(0.0)
    for i in range(0, dim, 8):
        total = vec.fadd(total, vec.load_f32x8(x + 4 * i))
    return vec.sum_f32x8(total) / dim


@inner
def inverse_deviation(x, mean, dim, eps):
    """Return 1 / sqrt(mean((x - mean)^2) + eps)."""
    middle = vec.splat_f32x8(mean)
    total = vec.splat_f32x8(0.0)
    for i in range(0, dim, 8):
        distance = vec.fsub(vec.load_f32x8(x + 4 * i), middle)
        total = vec.fma(distance, distance, total)
    return 1.0 / (vec.sum_f32x8(total) / dim + eps) ** 0.5


@inner
def norm_by(x, mean, inverse, weight, bias, out, first, last):
    """Compute out = (x - mean) * inverse * weight + bias for elements first <= i < last.

    There is no bias if its address is 0.
    """
    middle = vec.splat_f32x8(mean)
    factor = vec.splat_f32x8(inverse)
    for offset in range(4 * first, 4 * last, 32):
        normed = vec.fmul(
            vec.fmul(vec.fsub(vec.load_f32x8(x + offset), middle), factor),
            vec.load_f32x8(weight + offset),
        )
        if bias != 0:
            normed = vec.fadd(normed, vec.load_f32x8(bias + offset))
        vec.store_f32x8(out + offset, normed)


@kernel
def layernorm(op, thread, n_threads):
    """Normalise every token.

    Every thread computes mean and deviation of every token and writes its own share of elements.
    """
    dim, weight, bias = vec.load_words(op, (F.dim, F.weight, F.bias))
    eps = vec.load_f64(op + F.eps)
    first, last = share(dim, 256, thread, n_threads)
    for t in range(n_tokens_of(op)):
        x = vec.load_i64(op + F.x) + 4 * t * dim
        out = vec.load_i64(op + F.out) + 4 * t * dim
        mean = mean_of(x, dim)
        norm_by(x, mean, inverse_deviation(x, mean, dim, eps), weight, bias, out, first, last)


@kernel
def layernorm_heads(op, thread, n_threads):
    """Normalise every head of x [tokens, n_heads, head_dim] in place, with weights of its own.

    Threads share the heads.
    """
    n_heads, head_dim, x, weight = vec.load_words(
        op, (ROPE.n_heads, ROPE.head_dim, ROPE.x, ROPE.weight)
    )
    eps = vec.load_f64(op + ROPE.eps)
    first, last = share(n_tokens_of(op) * n_heads, 1, thread, n_threads)
    for i in range(first, last):
        head = x + 4 * i * head_dim
        row = weight + 4 * (i % n_heads) * head_dim
        mean = mean_of(head, head_dim)
        norm_by(head, mean, inverse_deviation(head, mean, head_dim, eps), row, 0, head, 0, head_dim)

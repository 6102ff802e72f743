"""Layer normalisation (Ba et al. 2016, arXiv:1607.06450): the mean goes off before the scaling."""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import RMSNORM as F
from engine.kernels.records import ROPE
from engine.kernels.share import n_tokens_of, share


@inner
def mean_of(x, dim):
    """Mean of ``dim`` f32, a multiple of 8."""
    total = vec.splat_f32x8(0.0)
    for i in range(0, dim, 8):
        total = vec.fadd(total, vec.load_f32x8(x + 4 * i))
    return vec.sum_f32x8(total) / dim


@inner
def inverse_deviation(x, mean, dim, eps):
    """1 / sqrt(mean((x - mean)^2) + eps)."""
    middle = vec.splat_f32x8(mean)
    total = vec.splat_f32x8(0.0)
    for i in range(0, dim, 8):
        distance = vec.fsub(vec.load_f32x8(x + 4 * i), middle)
        total = vec.fma(distance, distance, total)
    return 1.0 / (vec.sum_f32x8(total) / dim + eps) ** 0.5


@inner
def norm_by(x, mean, inverse, weight, bias, out, first, last):
    """out = (x - mean) * inverse * weight, + bias unless that is 0, for elements first <= i <
    last."""
    middle = vec.splat_f32x8(mean)
    factor = vec.splat_f32x8(inverse)
    for at in range(4 * first, 4 * last, 32):
        normed = vec.fmul(
            vec.fmul(vec.fsub(vec.load_f32x8(x + at), middle), factor), vec.load_f32x8(weight + at)
        )
        if bias != 0:
            normed = vec.fadd(normed, vec.load_f32x8(bias + at))
        vec.store_f32x8(out + at, normed)


@kernel
def layernorm(op, thread, n_threads):
    """Every thread finds mean and deviation of every token and writes its own share of elements."""
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
    """Every head of x[(token), n_heads, head_dim] in place, by its own row of weights; heads are
    dealt to threads."""
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

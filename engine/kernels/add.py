"""Addition of a branch to the residual stream, where no matrix product adds it by itself."""

from engine import simd as vec
from engine.jit import kernel
from engine.kernels.records import ADD as F
from engine.kernels.rmsnorm import inverse_rms
from engine.kernels.share import n_tokens_of, share


@kernel
def add(op, thread, n_threads):
    """x += branch."""
    x, branch, n = vec.load_words(op, (F.x, F.branch, F.n))
    first, last = share(n, 256, thread, n_threads)
    for t in range(n_tokens_of(op)):
        for at in range(4 * (t * n + first), 4 * (t * n + last), 32):
            vec.store_f32x8(x + at, vec.fadd(vec.load_f32x8(x + at), vec.load_f32x8(branch + at)))


@kernel
def add_normed(op, thread, n_threads):
    """x += rmsnorm(branch); every thread finds the root of every token and adds its own share of
    elements."""
    x, branch, n = vec.load_words(op, (F.x, F.branch, F.n))
    weight = vec.load_i64(op + F.weight)
    eps = vec.load_f64(op + F.eps)
    first, last = share(n, 256, thread, n_threads)
    for t in range(n_tokens_of(op)):
        row = 4 * t * n
        factor = vec.splat_f32x8(inverse_rms(branch + row, n, eps))
        for at in range(4 * first, 4 * last, 32):
            normed = vec.fmul(vec.load_f32x8(branch + row + at), factor)
            vec.store_f32x8(
                x + row + at,
                vec.fma(normed, vec.load_f32x8(weight + at), vec.load_f32x8(x + row + at)),
            )

"""Addition of a branch to the residual stream: ``x += branch``, f32 [tokens, n].

These kernels run only where no matrix product adds the branch by itself.
"""

from engine import simd as vec
from engine.jit import kernel
from engine.kernels.records import ADD as F
from engine.kernels.rmsnorm import inverse_rms
from engine.kernels.share import n_tokens_of, share


@kernel
def add(op, thread, n_threads):
    """Compute x += branch."""
    x, branch, n = vec.load_words(op, (F.x, F.branch, F.n))
    first, last = share(n, 256, thread, n_threads)
    for t in range(n_tokens_of(op)):
        for offset in range(4 * (t * n + first), 4 * (t * n + last), 32):
            vec.store_f32x8(
                x + offset, vec.fadd(vec.load_f32x8(x + offset), vec.load_f32x8(branch + offset))
            )


@kernel
def add_normed(op, thread, n_threads):
    """Compute x += rmsnorm(branch) * weight.

    Every thread computes the root mean square of every token and adds its own share of elements.
    """
    x, branch, n = vec.load_words(op, (F.x, F.branch, F.n))
    weight = vec.load_i64(op + F.weight)
    eps = vec.load_f64(op + F.eps)
    first, last = share(n, 256, thread, n_threads)
    for t in range(n_tokens_of(op)):
        row = 4 * t * n
        factor = vec.splat_f32x8(inverse_rms(branch + row, n, eps))
        for offset in range(4 * first, 4 * last, 32):
            normed = vec.fmul(vec.load_f32x8(branch + row + offset), factor)
            vec.store_f32x8(
                x + row + offset,
                vec.fma(normed, vec.load_f32x8(weight + offset), vec.load_f32x8(x + row + offset)),
            )

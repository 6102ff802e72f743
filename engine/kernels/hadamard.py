"""Heads times a normalised Hadamard matrix, which spreads what few elements hold over all of them.

Keys of many models have a few large elements, which cost their group of a quantised type its
resolution. The matrix is orthonormal, symmetric and its own inverse: products of queries and keys
stay what they were when both are multiplied by it, and so do sums of values when they are
multiplied once more (QuaRot, arXiv:2404.00456).
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import HADAMARD as F
from engine.kernels.share import n_tokens_of, share


@inner
def spread(at, n_bytes, factor):
    """Multiply a vector of f32, a power of two from 8 on long, by the matrix, in n log n steps."""
    for v in range(at, at + n_bytes, 32):
        vec.store_f32x8(
            v,
            vec.butterfly_4(vec.butterfly_2(vec.butterfly_1(vec.fmul(vec.load_f32x8(v), factor)))),
        )
    step = 32
    while step < n_bytes:
        for number in range(
            n_bytes // (2 * step)
        ):  # a step that may be 0 would make the loop one that raises
            pair = at + 2 * step * number
            for first in range(pair, pair + step, 32):
                x = vec.load_f32x8(first)
                y = vec.load_f32x8(first + step)
                vec.store_f32x8(first, vec.fadd(x, y))
                vec.store_f32x8(first + step, vec.fsub(x, y))
        step *= 2


@kernel
def hadamard(op, thread, n_threads):
    """Heads of all tokens are dealt to the threads as ``rope`` deals them; each has one block or
    several."""
    n_heads = vec.load_i64(op + F.n_heads)
    head_bytes = 4 * vec.load_i64(op + F.head_dim)
    x = vec.load_i64(op + F.x)
    block_bytes = 4 * vec.load_i64(op + F.block)
    factor = vec.splat_f32x8(vec.load_f64(op + F.factor))
    first, last = share(n_tokens_of(op) * n_heads, 1, thread, n_threads)
    for number in range((last - first) * head_bytes // block_bytes):
        spread(x + first * head_bytes + number * block_bytes, block_bytes, factor)

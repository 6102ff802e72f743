"""Heads times a normalised Hadamard matrix, which spreads what few elements hold over all of them.

Keys of many models have a few large elements, which cost their group of a quantised type its resolution. The matrix
is orthonormal, symmetric and its own inverse: products of queries and keys stay what they were when both are multiplied
by it, and so do sums of values when they are multiplied once more (QuaRot, arXiv:2404.00456).
"""

from engine.jit import inner, kernel
from engine.kernels.records import HADAMARD as F
from engine.kernels.records import STEP
from engine.kernels.share import share
from engine.simd import (
    butterfly_1,
    butterfly_2,
    butterfly_4,
    fadd,
    fmul,
    fsub,
    load_f32x8,
    load_f64,
    load_i64,
    splat_f32x8,
    store_f32x8,
)


@inner
def spread(at, n_bytes, factor):
    """Multiply a vector of f32, a power of two from 8 on long, by the matrix, in n log n steps."""
    for v in range(at, at + n_bytes, 32):
        store_f32x8(v, butterfly_4(butterfly_2(butterfly_1(fmul(load_f32x8(v), factor)))))
    step = 32
    while step < n_bytes:
        for number in range(n_bytes // (2 * step)):  # a step that may be 0 would make the loop one that raises
            pair = at + 2 * step * number
            for first in range(pair, pair + step, 32):
                x, y = load_f32x8(first), load_f32x8(first + step)
                store_f32x8(first, fadd(x, y))
                store_f32x8(first + step, fsub(x, y))
        step *= 2


@kernel
def hadamard(op, thread, n_threads):
    """Heads of all tokens are dealt to the threads as ``rope`` deals them; each has one block or several."""
    n_heads, head_bytes = load_i64(op + F.n_heads), 4 * load_i64(op + F.head_dim)
    x, block_bytes = load_i64(op + F.x), 4 * load_i64(op + F.block)
    factor = splat_f32x8(load_f64(op + F.factor))
    first, last = share(load_i64(load_i64(op + F.step) + STEP.n_tokens) * n_heads, 1, thread, n_threads)
    for number in range((last - first) * head_bytes // block_bytes):
        spread(x + first * head_bytes + number * block_bytes, block_bytes, factor)

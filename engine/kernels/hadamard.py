"""Product of heads with a normalised Hadamard matrix, f32, in place.

It spreads large elements over all elements. Keys of many models have a few large elements, which
cost their group of a quantised type its resolution. The matrix is orthonormal, symmetric and its
own inverse: products of queries and keys stay the same if both are multiplied by it, and so do sums
of values if they are multiplied once more (QuaRot, arXiv:2404.00456).
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import HADAMARD as F
from engine.kernels.share import n_tokens_of, share


@inner
def spread(address, n_bytes, factor):
    """Multiply a vector of f32 by the matrix, in n log n steps.

    Its length is a power of two, at least 8.
    """
    for lanes_address in range(address, address + n_bytes, 32):
        vec.store_f32x8(
            lanes_address,
            vec.butterfly_4(
                vec.butterfly_2(vec.butterfly_1(vec.fmul(vec.load_f32x8(lanes_address), factor)))
            ),
        )
    step = 32
    while step < n_bytes:
        for number in range(n_bytes // (2 * step)):  # a step of 0 would need an exception
            pair = address + 2 * step * number
            for first in range(pair, pair + step, 32):
                x = vec.load_f32x8(first)
                y = vec.load_f32x8(first + step)
                vec.store_f32x8(first, vec.fadd(x, y))
                vec.store_f32x8(first + step, vec.fsub(x, y))
        step *= 2


@kernel
def hadamard(op, thread, n_threads):
    """Multiply the heads of all tokens, each of one block or several.

    Threads share the heads as in ``rope``.
    """
    n_heads = vec.load_i64(op + F.n_heads)
    head_bytes = 4 * vec.load_i64(op + F.head_dim)
    x = vec.load_i64(op + F.x)
    block_bytes = 4 * vec.load_i64(op + F.block)
    factor = vec.splat_f32x8(vec.load_f64(op + F.factor))
    first, last = share(n_tokens_of(op) * n_heads, 1, thread, n_threads)
    for number in range((last - first) * head_bytes // block_bytes):
        spread(x + first * head_bytes + number * block_bytes, block_bytes, factor)

"""Between tokens and the columns of their experts: copies to go in, and weighted sums of what comes
out."""

import math

from engine import simd as vec
from engine.jit import kernel
from engine.kernels.records import JOIN, SPREAD
from engine.kernels.share import n_tokens_of, share


@kernel
def spread_tokens(op, thread, n_threads):
    """Copy every token to the columns of its experts; threads have the shares that they
    quantise."""
    x, out, columns = vec.load_words(op, (SPREAD.x, SPREAD.out, SPREAD.columns))
    n_used, dim = vec.load_words(op, (SPREAD.n_used, SPREAD.dim))
    first, last = share(dim, 256, thread, n_threads)
    for t in range(n_tokens_of(op)):
        for k in range(n_used):
            to = out + 4 * dim * vec.load_i32(columns + 4 * (t * n_used + k))
            source = x + 4 * dim * t
            for i in range(first, last, 8):
                vec.store_f32x8(to + 4 * i, vec.load_f32x8(source + 4 * i))


@kernel
def join_experts(op, thread, n_threads):
    """Sum up what a token's experts computed, in the order in which they were chosen."""
    parts, columns, weights, n_used, n = vec.load_words(
        op, (JOIN.parts, JOIN.columns, JOIN.weights, JOIN.n_used, JOIN.n)
    )
    out, shared, gate = vec.load_words(op, (JOIN.out, JOIN.shared, JOIN.shared_gate))
    add, add_stride = vec.load_words(op, (JOIN.add, JOIN.add_stride))
    first, last = share(n, 256, thread, n_threads)
    for t in range(n_tokens_of(op)):
        part = 1.0 if gate == 0 else 1.0 / (1.0 + math.exp(-vec.load_f32(gate + 4 * t)))
        for i in range(first, last, 8):
            total = vec.splat_f32x8(0.0)
            for k in range(n_used):
                at = 4 * (t * n_used + k)
                column = vec.load_f32x8(parts + 4 * (n * vec.load_i32(columns + at) + i))
                total = vec.fma(vec.splat_f32x8(vec.load_f32(weights + at)), column, total)
            if shared != 0:
                total = vec.fma(
                    vec.splat_f32x8(part), vec.load_f32x8(shared + 4 * (t * n + i)), total
                )
            if add != 0:
                total = vec.fadd(total, vec.load_f32x8(add + 4 * (t * add_stride + i)))
            vec.store_f32x8(out + 4 * (t * n + i), total)

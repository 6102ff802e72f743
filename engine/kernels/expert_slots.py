"""Copies between tokens and the slots of their experts, f32.

A slot is the place of one token among the tokens of one expert. Each token has ``n_used`` slots.
"""

import math

from engine import simd as vec
from engine.jit import kernel
from engine.kernels.records import SPREAD, SUM_EXPERTS
from engine.kernels.share import n_tokens_of, share


@kernel
def spread_tokens(op, thread, n_threads):
    """Copy every token to the slots of its experts.

    Threads copy the shares that they quantise.
    """
    x, out, slots = vec.load_words(op, (SPREAD.x, SPREAD.out, SPREAD.slots))
    n_used, dim = vec.load_words(op, (SPREAD.n_used, SPREAD.dim))
    first, last = share(dim, 256, thread, n_threads)
    for t in range(n_tokens_of(op)):
        for k in range(n_used):
            target = out + 4 * dim * vec.load_i32(slots + 4 * (t * n_used + k))
            source = x + 4 * dim * t
            for i in range(first, last, 8):
                vec.store_f32x8(target + 4 * i, vec.load_f32x8(source + 4 * i))


@kernel
def sum_experts(op, thread, n_threads):
    """Write the weighted sum of a token's expert results, in the order of the choice.

    out = sum of weights * results[slots] + sigmoid(gate) * shared + add.
    """
    results, slots, weights, n_used, n = vec.load_words(
        op,
        (
            SUM_EXPERTS.results,
            SUM_EXPERTS.slots,
            SUM_EXPERTS.weights,
            SUM_EXPERTS.n_used,
            SUM_EXPERTS.n,
        ),
    )
    out, shared, gate = vec.load_words(
        op, (SUM_EXPERTS.out, SUM_EXPERTS.shared, SUM_EXPERTS.shared_gate)
    )
    add, add_stride = vec.load_words(op, (SUM_EXPERTS.add, SUM_EXPERTS.add_stride))
    first, last = share(n, 256, thread, n_threads)
    for t in range(n_tokens_of(op)):
        shared_factor = 1.0 if gate == 0 else 1.0 / (1.0 + math.exp(-vec.load_f32(gate + 4 * t)))
        for i in range(first, last, 8):
            total = vec.splat_f32x8(0.0)
            for k in range(n_used):
                offset = 4 * (t * n_used + k)
                result = vec.load_f32x8(results + 4 * (n * vec.load_i32(slots + offset) + i))
                total = vec.fma(vec.splat_f32x8(vec.load_f32(weights + offset)), result, total)
            if shared != 0:
                total = vec.fma(
                    vec.splat_f32x8(shared_factor), vec.load_f32x8(shared + 4 * (t * n + i)), total
                )
            if add != 0:
                total = vec.fadd(total, vec.load_f32x8(add + 4 * (t * add_stride + i)))
            vec.store_f32x8(out + 4 * (t * n + i), total)

"""Weights of errors: the values of a group and the cost of an error in each, before a search."""

from engine import simd as vec
from engine.jit import inner
from engine.quantize.lanes import VALUES, WEIGHTS, root, transpose_blocks


@inner
def load_group(source, importance, first, n_blocks, blocks_per_row, n, scratch):
    """Transpose eight blocks of n values, and compute the cost of errors.

    The cost of a value is its magnitude plus twice the root mean square of its block, times the
    importance of its column if that is known. Source of the idea: ggml-quants.c,
    quantize_row_q4_K_impl.
    """
    x = scratch + VALUES
    w = scratch + WEIGHTS
    transpose_blocks(source, first, n_blocks, n, x)
    total = vec.splat_f32x8(0.0)
    for i in range(n):
        v = vec.load_f32x8(x + 32 * i)
        total = vec.fma(v, v, total)
    usual = vec.fmul(vec.splat_f32x8(2.0), root(vec.fmul(total, vec.splat_f32x8(1 / n))))
    if importance != 0:
        transpose_blocks(importance, first % blocks_per_row, blocks_per_row, n, w)
    for i in range(n):
        cost = vec.fadd(usual, vec.fabs(vec.load_f32x8(x + 32 * i)))
        vec.store_f32x8(
            w + 32 * i, vec.fmul(cost, vec.load_f32x8(w + 32 * i)) if importance != 0 else cost
        )

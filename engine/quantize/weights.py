"""What an error costs, value by value: a group's values and their weights, before a search."""

from engine import simd as vec
from engine.jit import inner
from engine.quantize.lanes import VALUES, WEIGHTS, root, turn


@inner
def load_group(source, importance, first, n_blocks, blocks_per_row, n, room):
    """Turn eight blocks of n values, and weigh them.

    A value's weight is its size, added to twice what is usual in its block; times the importance of
    its column, where that is known. Source of the idea: ggml-quants.c, quantize_row_q4_K_impl.
    """
    x = room + VALUES
    w = room + WEIGHTS
    turn(source, first, n_blocks, n, x)
    total = vec.splat_f32x8(0.0)
    for i in range(n):
        v = vec.load_f32x8(x + 32 * i)
        total = vec.fma(v, v, total)
    usual = vec.fmul(vec.splat_f32x8(2.0), root(vec.fmul(total, vec.splat_f32x8(1 / n))))
    if importance != 0:
        turn(importance, first % blocks_per_row, blocks_per_row, n, w)
    for i in range(n):
        cost = vec.fadd(usual, vec.fabs(vec.load_f32x8(x + 32 * i)))
        vec.store_f32x8(
            w + 32 * i, vec.fmul(cost, vec.load_f32x8(w + 32 * i)) if importance != 0 else cost
        )

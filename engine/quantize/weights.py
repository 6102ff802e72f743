"""What an error costs, value by value: a group's values and their weights, before a search."""

from engine import simd as vec
from engine.jit import inner
from engine.quantize.lanes import VALUES, WEIGHTS, root, turn


@inner
def evenly(v, mean_square):
    """Each error costs the same."""
    return vec.splat_f32x8(1.0)


@inner
def by_square(v, mean_square):
    """By the value's square."""
    return vec.fmul(v, v)


@inner
def by_size(v, mean_square):
    """By the value's size, added to what is usual in its block."""
    return vec.fadd(root(mean_square), vec.fabs(v))


@inner
def load_group(weigh, source, importance, first, n_blocks, blocks_per_row, n, room):
    """Turn eight blocks of n values, and weigh them: by ``weigh``, or by an importance of their columns.

    With importance a value's weight is that, times the root of its square and its block's mean square together.
    Source: ggml-quants.c, quantize_row_q4_K_impl.
    """
    x, w = room + VALUES, room + WEIGHTS
    turn(source, first, n_blocks, n, x)
    total = vec.splat_f32x8(0.0)
    for i in range(n):
        v = vec.load_f32x8(x + 32 * i)
        total = vec.fma(v, v, total)
    mean_square = vec.fmul(total, vec.splat_f32x8(1 / n))
    if importance != 0:
        turn(importance, first % blocks_per_row, blocks_per_row, n, w)
        for i in range(n):
            v = vec.load_f32x8(x + 32 * i)
            size = root(vec.fma(v, v, mean_square))
            vec.store_f32x8(w + 32 * i, vec.fmul(vec.load_f32x8(w + 32 * i), size))
    else:
        for i in range(n):
            vec.store_f32x8(w + 32 * i, weigh(vec.load_f32x8(x + 32 * i), mean_square))

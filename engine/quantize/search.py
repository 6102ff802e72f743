"""Search of scales: a block is rounded with several scales, and the best scale for each set of
codes is computed.

All functions work on groups of eight blocks (``lanes``): values x, weights w and codes q in memory,
results in lanes. The best scale d of given codes minimises sum(w (d q - x)^2). It is sum(w x q) /
sum(w q^2), and reduces sum(w x^2) by d sum(w x q). With a minimum there are two unknowns. So sums
show which scale is best, and no second pass measures the error.

Source of the idea and of the ranges: ggml-quants.c, make_qx_quants and make_qkx2_quants.
"""

from engine import simd as vec
from engine.jit import inner
from engine.quantize.lanes import TINY, inverse, nearest, where_above


@inner
def largest(x, n):
    """Return the value of largest magnitude of each block, with its sign."""
    top = magnitude = vec.splat_f32x8(0.0)
    for i in range(n):
        v = vec.load_f32x8(x + 32 * i)
        top = where_above(vec.fabs(v), magnitude, v, top)
        magnitude = vec.fmax(vec.fabs(v), magnitude)
    return where_above(magnitude, vec.splat_f32x8(TINY), top, vec.splat_f32x8(0.0))


@inner
def products(rounded, x, w, n, factor):
    """Return the sums of w x q and of w q^2 of each block; q are the values times a factor,
    rounded."""
    xq = qq = vec.splat_f32x8(0.0)
    for i in range(n):
        v = vec.load_f32x8(x + 32 * i)
        q = rounded(vec.fmul(v, factor))
        wq = vec.fmul(vec.load_f32x8(w + 32 * i), q)
        xq = vec.fma(wq, v, xq)
        qq = vec.fma(wq, q, qq)
    return xq, qq


@inner
def scale_only(rounded, reach, x, w, n, n_steps, step):
    """Find the scales of blocks without minima, of either sign.

    Args:
        rounded: Function that returns the nearest code.
        reach: Code of the largest magnitude; from ``n_steps`` steps less to as many more are
            tried.
    """
    inverse_top = inverse(largest(x, n))
    best = scale = vec.splat_f32x8(0.0)
    for sign in (-1.0, 1.0):
        for k in range(-n_steps, n_steps + 1):
            xq, qq = products(
                rounded, x, w, n, vec.fmul(inverse_top, vec.splat_f32x8(sign * (reach + step * k)))
            )
            candidate = vec.fmul(xq, inverse(qq))
            gain = vec.fmul(candidate, xq)
            scale = where_above(gain, best, candidate, scale)
            best = vec.fmax(gain, best)
    return scale


@inner
def ends(x, n):
    """Return the smallest and the largest value of each block."""
    low = high = vec.load_f32x8(x)
    for i in range(1, n):
        v = vec.load_f32x8(x + 32 * i)
        low = vec.fmin(v, low)
        high = vec.fmax(v, high)
    return low, high


@inner
def sums(x, w, n):
    """Return the sums of w and of w x of each block."""
    total = of_x = vec.splat_f32x8(0.0)
    for i in range(n):
        weight = vec.load_f32x8(w + 32 * i)
        total = vec.fadd(total, weight)
        of_x = vec.fma(weight, vec.load_f32x8(x + 32 * i), of_x)
    return total, of_x


@inner
def scale_and_minimum(x, w, n, most, is_free, first, step, n_steps):
    """Find scales and minima: a value is ``scale * q + minimum`` with q from 0 to ``most``.

    Args:
        is_free: Whether minima may be above zero.
        first: Added to ``most`` for the first range to try; each next range adds ``step`` more.

    Returns:
        (scales, minima, sums of w x q, of w q and of w q^2 for their codes).
    """
    zero = vec.splat_f32x8(0.0)
    limit = vec.splat_f32x8(most)
    low, high = ends(x, n)
    if not is_free:
        low = vec.fmin(low, zero)
    width = vec.fsub(high, low)
    per_unit = where_above(
        width, vec.splat_f32x8(TINY), vec.fdiv(vec.splat_f32x8(1.0), width), zero
    )
    w_sum, x_sum = sums(x, w, n)
    best = vec.splat_f32x8(-1.0)
    scale = zero
    minimum = low
    best_xq = best_q = best_qq = zero
    for k in range(n_steps):
        factor = vec.fmul(per_unit, vec.splat_f32x8(most + first + step * k))
        q_sum = qq = xq = zero
        for i in range(n):
            v = vec.load_f32x8(x + 32 * i)
            q = nearest(vec.fmul(vec.fsub(v, low), factor), zero, limit)
            wq = vec.fmul(vec.load_f32x8(w + 32 * i), q)
            q_sum = vec.fadd(q_sum, wq)
            qq = vec.fma(wq, q, qq)
            xq = vec.fma(wq, v, xq)
        product = vec.fmul(w_sum, qq)
        determinant = vec.fsub(
            product, vec.fmul(q_sum, q_sum)
        )  # 0 if all codes are equal, except for rounding
        inverse_determinant = where_above(
            determinant, vec.fmul(product, vec.splat_f32x8(1e-6)), inverse(determinant), zero
        )
        s = vec.fmul(vec.fsub(vec.fmul(w_sum, xq), vec.fmul(x_sum, q_sum)), inverse_determinant)
        m = vec.fmul(vec.fsub(vec.fmul(qq, x_sum), vec.fmul(q_sum, xq)), inverse_determinant)
        if not is_free:
            s = where_above(zero, m, s, vec.fmul(xq, inverse(qq)))
            m = vec.fmin(m, zero)
        gain = vec.fma(s, xq, vec.fmul(m, x_sum))
        gain = where_above(s, zero, gain, best)
        scale = where_above(gain, best, s, scale)
        minimum = where_above(gain, best, m, minimum)
        best_xq = where_above(gain, best, xq, best_xq)
        best_q = where_above(gain, best, q_sum, best_q)
        best_qq = where_above(gain, best, qq, best_qq)
        best = vec.fmax(gain, best)
    return scale, minimum, best_xq, best_q, best_qq

"""Table of the sixteen values of IQ4_NL and IQ4_XS, and the search of the nearest one."""

from itertools import pairwise

from engine import simd as vec
from engine.jit import inner
from engine.quantize.lanes import where_above
from engine.quants.iq4_nl import VALUES

BORDERS = tuple((low + high) / 2 for low, high in pairwise(VALUES))
STEPS = tuple(float(high - low) for low, high in pairwise(VALUES))
ONES = (1.0,) * 15


@inner
def sum_of_passed(v, steps):
    """Return the sum of the steps at the borders below each value.

    It is four sums, so none waits long for the previous one.
    """
    zero = vec.splat_f32x8(0.0)
    a = b = c = d = zero
    for k in range(0, 12, 4):
        a = vec.fadd(
            a, where_above(v, vec.splat_f32x8(BORDERS[k]), vec.splat_f32x8(steps[k]), zero)
        )
        b = vec.fadd(
            b, where_above(v, vec.splat_f32x8(BORDERS[k + 1]), vec.splat_f32x8(steps[k + 1]), zero)
        )
        c = vec.fadd(
            c, where_above(v, vec.splat_f32x8(BORDERS[k + 2]), vec.splat_f32x8(steps[k + 2]), zero)
        )
        d = vec.fadd(
            d, where_above(v, vec.splat_f32x8(BORDERS[k + 3]), vec.splat_f32x8(steps[k + 3]), zero)
        )
    a = vec.fadd(a, where_above(v, vec.splat_f32x8(BORDERS[12]), vec.splat_f32x8(steps[12]), zero))
    b = vec.fadd(b, where_above(v, vec.splat_f32x8(BORDERS[13]), vec.splat_f32x8(steps[13]), zero))
    c = vec.fadd(c, where_above(v, vec.splat_f32x8(BORDERS[14]), vec.splat_f32x8(steps[14]), zero))
    return vec.fadd(vec.fadd(a, b), vec.fadd(c, d))


@inner
def entry_of(v):
    """Return the nearest entry of each value."""
    return vec.fadd(vec.splat_f32x8(VALUES[0]), sum_of_passed(v, STEPS))


@inner
def index_of(v):
    """Return the index of the nearest entry of each value."""
    return sum_of_passed(v, ONES)

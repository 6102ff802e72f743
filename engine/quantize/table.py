"""The sixteen values that weights of IQ4_NL and IQ4_XS are made of, and which of them is
nearest."""

from itertools import pairwise

from engine import simd as vec
from engine.jit import inner
from engine.quantize.lanes import where_above
from engine.quants.iq4_nl import VALUES

BORDERS = tuple((low + high) / 2 for low, high in pairwise(VALUES))
STEPS = tuple(float(high - low) for low, high in pairwise(VALUES))
ONES = (1.0,) * 15


@inner
def passed(v, steps):
    """Sum of the steps at the borders below each value; four sums, so that none waits long for the
    one before."""
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
    """The entry that is nearest to each value."""
    return vec.fadd(vec.splat_f32x8(VALUES[0]), passed(v, STEPS))


@inner
def number_of(v):
    """The number of that entry."""
    return passed(v, ONES)

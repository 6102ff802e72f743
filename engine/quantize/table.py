"""The sixteen values that weights of IQ4_NL and IQ4_XS are made of, and which of them is nearest."""

from itertools import pairwise

from engine import simd as vec
from engine.jit import inner
from engine.quantize.lanes import where_above
from engine.quants.iq4_nl import VALUES

BORDERS = tuple((low + high) / 2 for low, high in pairwise(VALUES))
STEPS = tuple(high - low for low, high in pairwise(VALUES))


@inner
def entry_of(v):
    """The entry that is nearest to each value."""
    zero, entry = vec.splat_f32x8(0.0), vec.splat_f32x8(VALUES[0])
    for k in range(15):
        entry = vec.fadd(entry, where_above(v, vec.splat_f32x8(BORDERS[k]), vec.splat_f32x8(STEPS[k]), zero))
    return entry


@inner
def number_of(v):
    """The number of that entry."""
    zero, one = vec.splat_f32x8(0.0), vec.splat_f32x8(1.0)
    number = zero
    for k in range(15):
        number = vec.fadd(number, where_above(v, vec.splat_f32x8(BORDERS[k]), one, zero))
    return number

"""e to the power of eight lanes: numba has no vector exp, and attention and SwiGLU live on it."""

from engine.jit import inner
from engine.simd import (
    add,
    f32_of_bits,
    f32_of_i32x8,
    fma,
    fmax,
    fmin,
    fmul,
    round_to_i32,
    shift_left_i32,
    splat_f32x8,
    splat_i32x8,
)

LOG2_E = 1.44269504088896341
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.42860682030941723e-6
"""ln 2 in two parts; the first has so few digits that its products with integers are exact (Cody and Waite 1980)."""


@inner
def exp_f32x8(x):
    """exp(x) to about 2 units in the last place; x is held within [-87, 88], so nothing overflows; NaN stays NaN."""
    x = fmin(splat_f32x8(88.0), fmax(splat_f32x8(-87.0), x))
    n = round_to_i32(fmul(x, splat_f32x8(LOG2_E)))
    k = f32_of_i32x8(n)
    r = fma(k, splat_f32x8(-LN2_LOW), fma(k, splat_f32x8(-LN2_HIGH), x))
    p = splat_f32x8(1.0 / 720.0)
    p = fma(p, r, splat_f32x8(1.0 / 120.0))
    p = fma(p, r, splat_f32x8(1.0 / 24.0))
    p = fma(p, r, splat_f32x8(1.0 / 6.0))
    p = fma(p, r, splat_f32x8(0.5))
    p = fma(p, r, splat_f32x8(1.0))
    p = fma(p, r, splat_f32x8(1.0))
    return fmul(p, f32_of_bits(shift_left_i32(add(n, splat_i32x8(127)), 23)))

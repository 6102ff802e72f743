"""e to the power of lanes: numba has no vector exp, and attention and SwiGLU live on it."""

from engine.jit import inner
from engine.simd import f32_of_i32, fma, fmax, fmin, fmul, power_of_two, round_to_i32, splat_like

LOG2_E = 1.44269504088896341
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.42860682030941723e-6
"""ln 2 in two parts; the first has so few digits that its products with integers are exact (Cody and Waite 1980)."""


@inner
def exp_lanes(x):
    """exp(x) to about 2 units in the last place; x is held within [-87, 88], so nothing overflows; NaN stays NaN."""
    x = fmin(splat_like(x, 88.0), fmax(splat_like(x, -87.0), x))
    n = round_to_i32(fmul(x, splat_like(x, LOG2_E)))
    k = f32_of_i32(n)
    r = fma(k, splat_like(x, -LN2_LOW), fma(k, splat_like(x, -LN2_HIGH), x))
    p = splat_like(x, 1.0 / 720.0)
    p = fma(p, r, splat_like(x, 1.0 / 120.0))
    p = fma(p, r, splat_like(x, 1.0 / 24.0))
    p = fma(p, r, splat_like(x, 1.0 / 6.0))
    p = fma(p, r, splat_like(x, 0.5))
    p = fma(p, r, splat_like(x, 1.0))
    p = fma(p, r, splat_like(x, 1.0))
    return fmul(p, power_of_two(n))

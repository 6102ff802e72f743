"""exp of each lane, f32. numba has no vector exp, and attention and SwiGLU depend on it.

exp(x) = 2^k * p(r), with k = round(x / ln 2), r = x - k ln 2 and p a polynomial of degree 6.
"""

from engine import simd as vec
from engine.jit import inner

LOG2_E = 1.44269504088896341
LN2_HIGH = 0.693145751953125
LN2_LOW = 1.42860682030941723e-6
"""ln 2 in two parts.

The first has so few digits that its products with integers are exact (Cody and Waite 1980).
"""


@inner
def exp_lanes(x):
    """Return exp(x) to about 2 units in the last place.

    x is clamped to [-87, 88], so nothing overflows; NaN stays NaN.
    """
    x = vec.fmin(vec.splat_like(x, 88.0), vec.fmax(vec.splat_like(x, -87.0), x))
    n = vec.round_to_i32(vec.fmul(x, vec.splat_like(x, LOG2_E)))
    k = vec.f32_of_i32(n)
    r = vec.fma(k, vec.splat_like(x, -LN2_LOW), vec.fma(k, vec.splat_like(x, -LN2_HIGH), x))
    p = vec.splat_like(x, 1.0 / 720.0)
    p = vec.fma(p, r, vec.splat_like(x, 1.0 / 120.0))
    p = vec.fma(p, r, vec.splat_like(x, 1.0 / 24.0))
    p = vec.fma(p, r, vec.splat_like(x, 1.0 / 6.0))
    p = vec.fma(p, r, vec.splat_like(x, 0.5))
    p = vec.fma(p, r, vec.splat_like(x, 1.0))
    p = vec.fma(p, r, vec.splat_like(x, 1.0))
    return vec.fmul(p, vec.power_of_two(n))

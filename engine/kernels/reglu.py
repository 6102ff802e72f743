"""ReGLU's gate (Shazeer 2020, arXiv:2002.05202)."""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.swiglu import gated


@inner
def relu_times_lanes(x, up):
    """max(x, 0) * up."""
    return vec.fmul(vec.fmax(vec.splat_like(x, 0.0), x), up)


@inner
def relu_times_f32(x, up):
    """The same of one number."""
    return max(x, 0.0) * up


@kernel
def reglu(op, thread, n_threads):
    """gate = max(gate, 0) * up."""
    gated(relu_times_lanes, relu_times_f32, op, thread, n_threads)

"""Functions of a feed-forward that has no gate, applied in place."""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.geglu import gelu_f32, gelu_lanes
from engine.kernels.records import GATE as F
from engine.kernels.records import STEP
from engine.kernels.share import share


@inner
def applied(eight, one, op, thread, n_threads):
    """up = f(up).

    Args:
        eight, one: f of f32x8, and of the elements that are left over.
    """
    up, n = vec.load_i64(op + F.up), vec.load_i64(op + F.n)
    first, last = share(n, 256, thread, n_threads)
    whole = last - last % 8
    for t in range(vec.load_i64(vec.load_i64(op + F.step) + STEP.n_tokens)):
        for i in range(first, whole, 8):
            at = up + 4 * (t * n + i)
            vec.store_f32x8(at, eight(vec.load_f32x8(at)))
        for i in range(whole, last):
            at = up + 4 * (t * n + i)
            vec.store_f32(at, one(vec.load_f32(at)))


@inner
def squared_relu_f32x8(x):
    """max(x, 0) squared (So et al. 2021, arXiv:2109.08668)."""
    positive = vec.fmax(vec.splat_f32x8(0.0), x)
    return vec.fmul(positive, positive)


@inner
def squared_relu_f32(x):
    """The same of one number."""
    positive = max(x, 0.0)
    return positive * positive


@kernel
def squared_relu(op, thread, n_threads):
    """up = max(up, 0)^2."""
    applied(squared_relu_f32x8, squared_relu_f32, op, thread, n_threads)


@kernel
def gelu(op, thread, n_threads):
    """up = gelu(up)."""
    applied(gelu_lanes, gelu_f32, op, thread, n_threads)

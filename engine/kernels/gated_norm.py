"""Gates of mixers: heads normed and gated, gates by sigmoid, and queries that are next to their gates."""

import math

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.exp import exp_lanes
from engine.kernels.records import GATED_NORM as F
from engine.kernels.records import SPLIT, STEP
from engine.kernels.rmsnorm import inverse_rms
from engine.kernels.share import share
from engine.kernels.swiglu import gated, silu_lanes


@kernel
def gated_norm(op, thread, n_threads):
    """Norm and gate, or gate and norm, every head in place; heads of all tokens are dealt to the threads."""
    n_heads, head_dim, is_gated_first = (
        vec.load_i64(op + F.n_heads),
        vec.load_i64(op + F.head_dim),
        vec.load_i64(op + F.gate_first),
    )
    weights, weight_step, eps = vec.load_i64(op + F.weight), vec.load_i64(op + F.weight_step), vec.load_f64(op + F.eps)
    first, last = share(vec.load_i64(vec.load_i64(op + F.step) + STEP.n_tokens) * n_heads, 1, thread, n_threads)
    for i in range(first, last):
        t, head = i // n_heads, i % n_heads
        x, weight = vec.load_i64(op + F.x) + 4 * i * head_dim, weights + head * weight_step
        gate = vec.load_i64(op + F.gate) + 4 * (t * vec.load_i64(op + F.gate_stride) + head * head_dim)
        if is_gated_first:
            for at in range(0, 4 * head_dim, 32):
                vec.store_f32x8(x + at, silu_lanes(vec.load_f32x8(gate + at), vec.load_f32x8(x + at)))
        if weights != 0:
            factor = vec.splat_f32x8(inverse_rms(x, head_dim, eps))
            for at in range(0, 4 * head_dim, 32):
                vec.store_f32x8(x + at, vec.fmul(vec.fmul(vec.load_f32x8(x + at), factor), vec.load_f32x8(weight + at)))
        if not is_gated_first:
            for at in range(0, 4 * head_dim, 32):
                vec.store_f32x8(x + at, silu_lanes(vec.load_f32x8(gate + at), vec.load_f32x8(x + at)))


@inner
def sigmoid_lanes(x, up):
    """Up / (1 + exp(-x))."""
    return vec.fdiv(up, vec.fadd(vec.splat_like(x, 1.0), exp_lanes(vec.fsub(vec.splat_like(x, 0.0), x))))


@inner
def sigmoid_f32(x, up):
    """The same of one number."""
    return up / (1.0 + math.exp(-x))


@kernel
def sigmoid_gate(op, thread, n_threads):
    """gate = sigmoid(gate) * up."""
    gated(sigmoid_lanes, sigmoid_f32, op, thread, n_threads)


@kernel
def split_heads(op, thread, n_threads):
    """Part heads that hold two halves; heads are dealt to the threads as ``rope`` deals them."""
    n_heads, n_bytes = vec.load_i64(op + SPLIT.n_heads), 4 * vec.load_i64(op + SPLIT.head_dim)
    x, left, right = vec.load_i64(op + SPLIT.x), vec.load_i64(op + SPLIT.left), vec.load_i64(op + SPLIT.right)
    first, last = share(vec.load_i64(vec.load_i64(op + SPLIT.step) + STEP.n_tokens) * n_heads, 1, thread, n_threads)
    for i in range(first, last):
        for at in range(i * n_bytes, (i + 1) * n_bytes, 32):
            vec.store_f32x8(left + at, vec.load_f32x8(x + i * n_bytes + at))
            vec.store_f32x8(right + at, vec.load_f32x8(x + (i + 1) * n_bytes + at))

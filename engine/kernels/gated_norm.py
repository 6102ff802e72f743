"""Gates of mixers: heads normed and gated, gates by sigmoid, and queries that are next to their gates."""

import math

from engine.jit import inner, kernel
from engine.kernels.exp import exp_lanes
from engine.kernels.records import GATED_NORM as F
from engine.kernels.records import SPLIT, STEP
from engine.kernels.rmsnorm import inverse_rms
from engine.kernels.share import share
from engine.kernels.swiglu import gated, silu_lanes
from engine.simd import fadd, fdiv, fmul, fsub, load_f32x8, load_f64, load_i64, splat_f32x8, splat_like, store_f32x8


@kernel
def gated_norm(op, thread, n_threads):
    """Norm and gate, or gate and norm, every head in place; heads of all tokens are dealt to the threads."""
    n_heads, head_dim, is_gated_first = load_i64(op + F.n_heads), load_i64(op + F.head_dim), load_i64(op + F.gate_first)
    weights, weight_step, eps = load_i64(op + F.weight), load_i64(op + F.weight_step), load_f64(op + F.eps)
    first, last = share(load_i64(load_i64(op + F.step) + STEP.n_tokens) * n_heads, 1, thread, n_threads)
    for i in range(first, last):
        t, head = i // n_heads, i % n_heads
        x, weight = load_i64(op + F.x) + 4 * i * head_dim, weights + head * weight_step
        gate = load_i64(op + F.gate) + 4 * (t * load_i64(op + F.gate_stride) + head * head_dim)
        if is_gated_first:
            for at in range(0, 4 * head_dim, 32):
                store_f32x8(x + at, silu_lanes(load_f32x8(gate + at), load_f32x8(x + at)))
        if weights != 0:
            factor = splat_f32x8(inverse_rms(x, head_dim, eps))
            for at in range(0, 4 * head_dim, 32):
                store_f32x8(x + at, fmul(fmul(load_f32x8(x + at), factor), load_f32x8(weight + at)))
        if not is_gated_first:
            for at in range(0, 4 * head_dim, 32):
                store_f32x8(x + at, silu_lanes(load_f32x8(gate + at), load_f32x8(x + at)))


@inner
def sigmoid_lanes(x, up):
    """Up / (1 + exp(-x))."""
    return fdiv(up, fadd(splat_like(x, 1.0), exp_lanes(fsub(splat_like(x, 0.0), x))))


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
    n_heads, n_bytes = load_i64(op + SPLIT.n_heads), 4 * load_i64(op + SPLIT.head_dim)
    x, left, right = load_i64(op + SPLIT.x), load_i64(op + SPLIT.left), load_i64(op + SPLIT.right)
    first, last = share(load_i64(load_i64(op + SPLIT.step) + STEP.n_tokens) * n_heads, 1, thread, n_threads)
    for i in range(first, last):
        for at in range(i * n_bytes, (i + 1) * n_bytes, 32):
            store_f32x8(left + at, load_f32x8(x + i * n_bytes + at))
            store_f32x8(right + at, load_f32x8(x + (i + 1) * n_bytes + at))

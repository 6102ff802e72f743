"""SwiGLU's gate (Shazeer 2020, arXiv:2002.05202)."""

import math

from engine.jit import kernel
from engine.kernels.exp import exp_f32x8
from engine.kernels.share import share
from engine.records import STEP
from engine.records import SWIGLU as F
from engine.simd import fadd, fdiv, fmul, fsub, load_f32, load_f32x8, load_i64, splat_f32x8, store_f32, store_f32x8


@kernel
def swiglu(op, thread, n_threads):
    """gate = gate / (1 + exp(-gate)) * up, in place."""
    gate, up, n = load_i64(op + F.gate), load_i64(op + F.up), load_i64(op + F.n)
    first, last = share(n, 256, thread, n_threads)
    one, whole = splat_f32x8(1.0), last - last % 8
    for t in range(load_i64(load_i64(op + F.step) + STEP.n_tokens)):
        for i in range(first, whole, 8):
            at = 4 * (t * n + i)
            g = load_f32x8(gate + at)
            silu = fdiv(g, fadd(one, exp_f32x8(fsub(splat_f32x8(0.0), g))))
            store_f32x8(gate + at, fmul(silu, load_f32x8(up + at)))
        for i in range(whole, last):
            at = 4 * (t * n + i)
            g = load_f32(gate + at)
            store_f32(gate + at, g / (1.0 + math.exp(-g)) * load_f32(up + at))

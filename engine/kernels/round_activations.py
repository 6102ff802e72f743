"""Activations rounded to the type of 16-bit weights, as llama.cpp rounds them before it multiplies; kept as f32."""

from engine.jit import inner, kernel
from engine.kernels.records import QUANTIZE as F
from engine.kernels.records import STEP
from engine.kernels.share import share
from engine.simd import load_f32, load_i64, load_u32, round_to_f16, store_f32, store_i32


@inner
def round_rows(round_one, op, thread, n_threads):
    """Write every token's vector, rounded, to ``q``; shares are those of ``rmsnorm``."""
    n, x, out = load_i64(op + F.n), load_i64(op + F.x), load_i64(op + F.q)
    first, last = share(n, 256, thread, n_threads)
    for t in range(load_i64(load_i64(op + F.step) + STEP.n_tokens)):
        for i in range(first, last):
            at = 4 * (t * n + i)
            round_one(x + at, out + at)


@inner
def to_f16(x, out):
    """One element to the nearest half."""
    store_f32(out, round_to_f16(load_f32(x)))


@inner
def to_bf16(x, out):
    """One element to the nearest bfloat16, halves to even."""
    bits = load_u32(x)
    store_i32(out, (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000)


@kernel
def round_f16(op, thread, n_threads):
    """For F16 weights."""
    round_rows(to_f16, op, thread, n_threads)


@kernel
def round_bf16(op, thread, n_threads):
    """For BF16 weights."""
    round_rows(to_bf16, op, thread, n_threads)

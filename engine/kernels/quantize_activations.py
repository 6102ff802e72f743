"""Activations to int8, as llama.cpp's Q8_K (groups of 256) and Q8_0 (groups of 32) do it, with the group sums.

Threads take the same shares of a vector as ``rmsnorm`` writes, so no barrier is needed between the two.
Source: ggml-quants.c, quantize_row_q8_K_ref and quantize_row_q8_0.
"""

from engine.jit import inner, kernel
from engine.kernels.share import share
from engine.records import QUANTIZE as F
from engine.records import STEP
from engine.simd import (
    add,
    fabs,
    fmax,
    fmul,
    load_f32x8,
    load_i64,
    max_f32x8,
    round_to_f16,
    round_to_i32,
    splat_f32x8,
    splat_i32x8,
    store_f32,
    store_i16,
    store_i32,
    store_low_bytes,
    sum_i32x8,
)


@inner
def largest(x, n):
    """Largest magnitude of n f32, a multiple of 8."""
    top = splat_f32x8(0.0)
    for i in range(0, n, 8):
        top = fmax(fabs(load_f32x8(x + 4 * i)), top)
    return max_f32x8(top)


@inner
def round_group(x, n, inverse, q):
    """Write n rounded int8 (a multiple of 8); returns their sum."""
    total, factor = splat_i32x8(0), splat_f32x8(inverse)
    for i in range(0, n, 8):
        rounded = round_to_i32(fmul(load_f32x8(x + 4 * i), factor))
        store_low_bytes(q + i, rounded)
        total = add(total, rounded)
    return sum_i32x8(total)


@inner
def quantize_256(x, q, d, sums):
    """One group of q8_k: 256 int8, one f32 scale, 16 sums of 16 and 8 sums of 32 (int16)."""
    top = largest(x, 256)
    store_f32(d, top / 127.0)
    inverse = 127.0 / top if top > 0.0 else 0.0
    for g in range(8):
        low = round_group(x + 128 * g, 16, inverse, q + 32 * g)
        high = round_group(x + 128 * g + 64, 16, inverse, q + 32 * g + 16)
        store_i16(sums + 4 * g, low)
        store_i16(sums + 4 * g + 2, high)
        store_i16(sums + 32 + 2 * g, low + high)


@inner
def quantize_32(x, q, d, sums):
    """One group of q8_0: 32 int8, a scale that a half can hold, one int32 sum."""
    top = largest(x, 32)
    store_f32(d, round_to_f16(top / 127.0))
    store_i32(sums, round_group(x, 32, 127.0 / top if top > 0.0 else 0.0, q))


@kernel
def quantize_q8_k(op, thread, n_threads):
    """n is a multiple of 256."""
    n, x = load_i64(op + F.n), load_i64(op + F.x)
    q, d, sums = load_i64(op + F.q), load_i64(op + F.d), load_i64(op + F.sums)
    first, last = share(n, 256, thread, n_threads)
    for t in range(load_i64(load_i64(op + F.step) + STEP.n_tokens)):
        for i in range(first, last, 256):
            g = (t * n + i) // 256
            quantize_256(x + 4 * (t * n + i), q + t * n + i, d + 4 * g, sums + 48 * g)


@kernel
def quantize_q8_0(op, thread, n_threads):
    """n is a multiple of 32."""
    n, x = load_i64(op + F.n), load_i64(op + F.x)
    q, d, sums = load_i64(op + F.q), load_i64(op + F.d), load_i64(op + F.sums)
    first, last = share(n, 256, thread, n_threads)
    for t in range(load_i64(load_i64(op + F.step) + STEP.n_tokens)):
        for i in range(first, last, 32):
            g = (t * n + i) // 32
            quantize_32(x + 4 * (t * n + i), q + t * n + i, d + 4 * g, sums + 4 * g)

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
    store_four_i8,
    store_four_i16,
    store_i16,
    store_i32,
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
def round_group(x, count, inverse, store, stride, q):
    """Write ``count`` rounded values, a multiple of 8, ``stride`` bytes from each other; returns their sum.

    Args:
        store: (address, step, eight int32) -> None, four values at the address and four ``step`` bytes behind it.
    """
    total, factor = splat_i32x8(0), splat_f32x8(inverse)
    for i in range(0, count, 8):
        rounded = round_to_i32(fmul(load_f32x8(x + 4 * i), factor))
        store(q + stride * i, 4 * stride, rounded)
        total = add(total, rounded)
    return sum_i32x8(total)


@inner
def place(stride, n, padded, t, k):
    """Byte offset of the k-th value of token t.

    One token behind the other as decode reads them (stride 1), or as prefill does, four tokens side by side
    (``buffers.in_columns``), in one byte (4) or two (8).
    """
    if stride == 1:
        return t * n + k
    first = k & ~255
    return stride // 4 * (first * padded + (t & ~3) * min(256, n - first) + 4 * (k - first + (t & 3)))


@inner
def quantize_256(x, store, stride, q, d, sums):
    """One group of q8_k: 256 values, one f32 scale, 16 sums of 16 and 8 sums of 32 (int16)."""
    top = largest(x, 256)
    store_f32(d, top / 127.0)
    inverse = 127.0 / top if top > 0.0 else 0.0
    for g in range(8):
        low = round_group(x + 128 * g, 16, inverse, store, stride, q + stride * 32 * g)
        high = round_group(x + 128 * g + 64, 16, inverse, store, stride, q + stride * (32 * g + 16))
        store_i16(sums + 4 * g, low)
        store_i16(sums + 4 * g + 2, high)
        store_i16(sums + 32 + 2 * g, low + high)


@inner
def quantize_32(x, store, stride, q, d, sums):
    """One group of q8_0: 32 values, a scale that a half can hold, one int32 sum."""
    top = largest(x, 32)
    store_f32(d, round_to_f16(top / 127.0))
    store_i32(sums, round_group(x, 32, 127.0 / top if top > 0.0 else 0.0, store, stride, q))


@inner
def quantize_groups(quantize, group, sums_bytes, store, stride, op, thread, n_threads):
    """All tokens of the step; n is a multiple of ``group``."""
    n, x = load_i64(op + F.n), load_i64(op + F.x)
    q, d, sums = load_i64(op + F.q), load_i64(op + F.d), load_i64(op + F.sums)
    n_tokens = load_i64(load_i64(op + F.step) + STEP.n_tokens)
    padded = (n_tokens + 3) & ~3
    first, last = share(n, 256, thread, n_threads)
    for t in range(n_tokens):
        for k in range(first, last, group):
            at = t * (n // group) + k // group if stride == 1 else k // group * padded + t
            values, out = x + 4 * (t * n + k), q + place(stride, n, padded, t, k)
            quantize(values, store, stride, out, d + 4 * at, sums + sums_bytes * at)


@kernel
def q8_k(op, thread, n_threads):
    """A few tokens, for decode."""
    quantize_groups(quantize_256, 256, 48, store_four_i8, 1, op, thread, n_threads)


@kernel
def q8_k_bytes(op, thread, n_threads):
    """All tokens, for prefill with byte products."""
    quantize_groups(quantize_256, 256, 48, store_four_i8, 4, op, thread, n_threads)


@kernel
def q8_k_words(op, thread, n_threads):
    """All tokens, for prefill with int16 products."""
    quantize_groups(quantize_256, 256, 48, store_four_i16, 8, op, thread, n_threads)


@kernel
def q8_0(op, thread, n_threads):
    """A few tokens, for decode."""
    quantize_groups(quantize_32, 32, 4, store_four_i8, 1, op, thread, n_threads)


@kernel
def q8_0_bytes(op, thread, n_threads):
    """All tokens, for prefill with byte products."""
    quantize_groups(quantize_32, 32, 4, store_four_i8, 4, op, thread, n_threads)


@kernel
def q8_0_words(op, thread, n_threads):
    """All tokens, for prefill with int16 products."""
    quantize_groups(quantize_32, 32, 4, store_four_i16, 8, op, thread, n_threads)

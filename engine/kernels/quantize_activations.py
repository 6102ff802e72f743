"""Activations to int8, as llama.cpp's Q8_K (groups of 256) and Q8_0 (groups of 32) do it, with the group sums.

Threads take the same shares of a vector as ``rmsnorm`` writes, so no barrier is needed between the two.
Source: ggml-quants.c, quantize_row_q8_K_ref and quantize_row_q8_0.
"""

from engine.jit import inner, kernel
from engine.kernels.records import QUANTIZE as F
from engine.kernels.records import STEP
from engine.kernels.share import share
from engine.simd import (
    abs_i32,
    add,
    fabs,
    fma,
    fmax,
    fmul,
    load_f32x8,
    load_i64,
    max_f32x8,
    round_to_f16,
    round_to_i32,
    splat_f32x8,
    store_f32,
    store_four_i8,
    store_four_i16,
    store_i16,
    store_i32,
    sum_f32x8,
    sum_i32x8,
)


@inner
def largest(x, n):
    """Largest magnitude of n f32, a multiple of 8; NaN if any is NaN or infinite, so that a scale made of it is too."""
    zero = splat_f32x8(0.0)
    top, broken = zero, zero
    for i in range(0, n, 8):
        v = load_f32x8(x + 4 * i)
        top, broken = fmax(fabs(v), top), fma(v, zero, broken)
    return max_f32x8(top) + sum_f32x8(broken)


@inner
def round_sixteen(x, inverse, store, stride, q):
    """Write sixteen rounded values, ``stride`` bytes from each other; returns their sum."""
    factor = splat_f32x8(inverse)
    low, high = round_to_i32(fmul(load_f32x8(x), factor)), round_to_i32(fmul(load_f32x8(x + 32), factor))
    store(q, 4 * stride, low)
    store(q + 8 * stride, 4 * stride, high)
    return sum_i32x8(add(low, high))


@inner
def in_row(n, t, k):
    """Place of value k of token t where decode reads it (``buffers.row_places``)."""
    whole = n & ~255
    if whole == 0 or whole == n:
        return t * n + k
    return t * (whole + 256) + k + (whole + 256 - n if k >= whole else 0)


@inner
def in_rows(n, padded, t, k):
    """Byte offsets of the sixteen values from the k-th of token t on, and of the next sixteen: one behind the other."""
    at = in_row(n, t, k)
    return at, at + 16


@inner
def paired_256(n, padded, t, k):
    """The same in ``buffers.PAIRED_256``, of two bytes a value."""
    at = 2 * (t * n + (k & ~255)) + 128 * ((k & 255) >> 6) + 16 * ((k >> 5) & 1)
    return at, at + 32


@inner
def paired_32(n, padded, t, k):
    """The same in ``buffers.PAIRED_32``; in order where there are fewer than 256."""
    place = in_row(n, t, k)
    if n < 256:
        return place, place + 16
    group = (place & 255) >> 5
    at = (place & ~255) + 64 * (group & 3) + 16 * (group >> 2)
    return at, at + 32


@inner
def in_columns(n, padded, t, k):
    """The same with four tokens side by side (``buffers.in_columns``)."""
    first = k & ~255
    at = first * padded + (t & ~3) * min(256, n - first) + 4 * (k - first + (t & 3))
    return at, at + 64


@inner
def in_columns_of_words(n, padded, t, k):
    """The same in two bytes each."""
    low, high = in_columns(n, padded, t, k)
    return 2 * low, 2 * high


@inner
def quantize_256(x, layout, store, stride, n, padded, t, k, q, d, sums):
    """One group of q8_k: 256 values, one f32 scale, 16 sums of 16 and 8 sums of 32 (int16)."""
    top = largest(x, 256)
    store_f32(d, top / 127.0)
    inverse = 127.0 / top if top > 0.0 else 0.0
    for g in range(8):
        at_low, at_high = layout(n, padded, t, k + 32 * g)
        low = round_sixteen(x + 128 * g, inverse, store, stride, q + at_low)
        high = round_sixteen(x + 128 * g + 64, inverse, store, stride, q + at_high)
        store_i16(sums + 4 * g, low)
        store_i16(sums + 4 * g + 2, high)
        store_i16(sums + 32 + 2 * g, low + high)


@inner
def quantize_32(x, layout, store, stride, n, padded, t, k, q, d, sums):
    """One group of q8_0: 32 values, a scale that a half can hold, one int32 sum."""
    top = largest(x, 32)
    store_f32(d, round_to_f16(top / 127.0))
    inverse = 127.0 / top if top > 0.0 else 0.0
    at_low, at_high = layout(n, padded, t, k)
    low = round_sixteen(x, inverse, store, stride, q + at_low)
    store_i32(sums, low + round_sixteen(x + 64, inverse, store, stride, q + at_high))


@inner
def quantize_groups(quantize, group, sums_bytes, layout, store, stride, op, thread, n_threads):
    """All tokens of the step; n is a multiple of ``group``.

    Args:
        layout: (n, padded, t, k) -> byte offsets of the values k to k + 15 of token t, and k + 16 to k + 31.
        store: (address, step, eight int32) -> None, four values at the address and four ``step`` bytes behind it.
        stride: bytes from a value to the next of the sixteen; 1 where decode reads them.
    """
    n, x = load_i64(op + F.n), load_i64(op + F.x)
    q, d, sums = load_i64(op + F.q), load_i64(op + F.d), load_i64(op + F.sums)
    n_tokens = load_i64(load_i64(op + F.step) + STEP.n_tokens)
    padded = (n_tokens + 3) & ~3
    first, last = share(n, 256, thread, n_threads)
    for t in range(n_tokens):
        for k in range(first, last, group):
            at = in_row(n, t, k) // group if stride == 1 else k // group * padded + t
            values = x + 4 * (t * n + k)
            quantize(values, layout, store, stride, n, padded, t, k, q, d + 4 * at, sums + sums_bytes * at)


@inner
def store_with_magnitudes(address, step, v):
    """Four int8 at each of two places, and their magnitudes 64 bytes behind."""
    store_four_i8(address, step, v)
    store_four_i8(address + 64, step, abs_i32(v))


@kernel
def q8_k(op, thread, n_threads):
    """A few tokens, for decode."""
    quantize_groups(quantize_256, 256, 48, in_rows, store_four_i8, 1, op, thread, n_threads)


@kernel
def q8_k_paired(op, thread, n_threads):
    """A few tokens, for decode of weights with signs."""
    quantize_groups(quantize_256, 256, 48, paired_256, store_with_magnitudes, 1, op, thread, n_threads)


@kernel
def q8_k_bytes(op, thread, n_threads):
    """All tokens, for prefill with byte products."""
    quantize_groups(quantize_256, 256, 48, in_columns, store_four_i8, 4, op, thread, n_threads)


@kernel
def q8_k_words(op, thread, n_threads):
    """All tokens, for prefill with int16 products."""
    quantize_groups(quantize_256, 256, 48, in_columns_of_words, store_four_i16, 8, op, thread, n_threads)


@kernel
def q8_0(op, thread, n_threads):
    """A few tokens, for decode."""
    quantize_groups(quantize_32, 32, 4, in_rows, store_four_i8, 1, op, thread, n_threads)


@kernel
def q8_0_paired(op, thread, n_threads):
    """A few tokens, for decode of nibbles."""
    quantize_groups(quantize_32, 32, 4, paired_32, store_four_i8, 1, op, thread, n_threads)


@kernel
def q8_0_bytes(op, thread, n_threads):
    """All tokens, for prefill with byte products."""
    quantize_groups(quantize_32, 32, 4, in_columns, store_four_i8, 4, op, thread, n_threads)


@kernel
def q8_0_words(op, thread, n_threads):
    """All tokens, for prefill with int16 products."""
    quantize_groups(quantize_32, 32, 4, in_columns_of_words, store_four_i16, 8, op, thread, n_threads)

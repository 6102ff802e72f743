"""Activations as int8 with scales and group sums: q8_k (groups of 256) and q8_0 (groups of 32).

d = max |x| / 127, q = round(x / d); x is f32 [tokens, n]. Threads take the same shares of a vector
as ``rmsnorm`` writes, so no barrier is needed in between.

Source: ggml-quants.c, quantize_row_q8_K_ref and quantize_row_q8_0.
"""

from functools import partial

from engine import simd as vec
from engine.jit import inner, kernels_of
from engine.kernels.records import QUANTIZE as F
from engine.kernels.records import SUMS_K_BYTES, SUMS_OF_32
from engine.kernels.share import n_tokens_of, share
from engine.kernels.tiles import INTERLEAVED_TOKENS, TILE_TOKENS


@inner
def largest(x, n):
    """Return the largest magnitude of n f32; n is a multiple of 8.

    The result, and so the scale, is NaN if any of them is NaN or infinite.
    """
    zero = vec.splat_f32x8(0.0)
    top = zero
    broken = zero
    for i in range(0, n, 8):
        v = vec.load_f32x8(x + 4 * i)
        top = vec.fmax(vec.fabs(v), top)
        broken = vec.fma(v, zero, broken)
    return vec.max_f32x8(top) + vec.sum_f32x8(broken)


@inner
def row_offset(n, t, k):
    """Return the offset of value k of token t in rows that decode reads
    (``buffers.row_places``)."""
    n_in_chunks = n & ~255
    if n_in_chunks == 0 or n_in_chunks == n:
        return t * n + k
    return t * (n_in_chunks + 256) + k + (n_in_chunks + 256 - n if k >= n_in_chunks else 0)


@inner
def put_in_row(q, n, padded, t, k, low, high):
    """Write values k to k + 15 of token t, one after the other."""
    address = q + row_offset(n, t, k)
    vec.store_four_i8(address, 4, low)
    vec.store_four_i8(address + 8, 4, high)


@inner
def put_paired_256(q, n, padded, t, k, low, high):
    """Write sixteen values in the order ``buffers.PAIRED_256``, their magnitudes 64 bytes after
    them."""
    address = (
        q
        + 2 * (t * n + (k & ~255))
        + 128 * ((k & 255) >> 6)
        + 16 * ((k >> 5) & 1)
        + 32 * ((k >> 4) & 1)
    )
    vec.store_four_i8(address, 4, low)
    vec.store_four_i8(address + 8, 4, high)
    vec.store_four_i8(address + 64, 4, vec.abs_i32(low))
    vec.store_four_i8(address + 72, 4, vec.abs_i32(high))


@inner
def put_paired_32(q, n, padded, t, k, low, high):
    """Write sixteen values in the order ``buffers.PAIRED_32``; rows below 256 stay in order."""
    offset = row_offset(n, t, k)
    if n >= 256:
        group = (offset & 255) >> 5
        offset = (offset & ~255) + 64 * (group & 3) + 16 * (group >> 2) + 32 * ((k >> 4) & 1)
    vec.store_four_i8(q + offset, 4, low)
    vec.store_four_i8(q + offset + 8, 4, high)


@inner
def put_fours_32(q, n, padded, t, k, low, high):
    """Write sixteen values in the order ``buffers.FOURS_32``; rows below 256 stay in order."""
    if n < 256:
        put_in_row(q, n, padded, t, k, low, high)
    else:
        offset = row_offset(n, t, k)
        address = q + (offset & ~255) + 8 * (offset & 16) + 4 * ((offset & 255) >> 5)
        vec.store_four_i8(address, 32, low)
        vec.store_four_i8(address + 64, 32, high)


@inner
def put_planes_8(q, n, padded, t, k, low, high):
    """Write sixteen values in the order ``buffers.PLANES_8``; rows below 256 stay in order."""
    if n < 256:
        put_in_row(q, n, padded, t, k, low, high)
    else:
        offset = row_offset(n, t, k)
        address = q + (offset & ~255) + ((offset & 255) >> 3)
        vec.store_bytes_apart(address, 32, low)
        vec.store_bytes_apart(address + 1, 32, high)


@inner
def put_planes_4(q, n, padded, t, k, low, high):
    """Write sixteen values in the order ``buffers.PLANES_4``; rows below 256 stay in order."""
    if n < 256:
        put_in_row(q, n, padded, t, k, low, high)
    else:
        offset = row_offset(n, t, k)
        block = (offset & 255) >> 6
        address = q + (offset & ~255) + 128 * (block & 1) + 16 * (block >> 1) + ((offset & 63) >> 2)
        vec.store_fours_apart(address, 32, low)
        vec.store_fours_apart(address + 2, 32, high)


@inner
def interleaved_offset(n, padded, t, k):
    """Return the offset of value k of token t among interleaved tokens
    (``buffers.interleaved``)."""
    first = k & ~255
    token_in_group = t & (INTERLEAVED_TOKENS - 1)
    return (
        first * padded
        + (t - token_in_group) * min(256, n - first)
        + INTERLEAVED_TOKENS * (k - first)
        + 4 * token_in_group
    )


@inner
def put_interleaved(q, n, padded, t, k, low, high):
    """Write values k to k + 15 of token t, each four next to those of other tokens."""
    address = q + interleaved_offset(n, padded, t, k)
    vec.store_four_i8(address, 4 * INTERLEAVED_TOKENS, low)
    vec.store_four_i8(address + 8 * INTERLEAVED_TOKENS, 4 * INTERLEAVED_TOKENS, high)


@inner
def put_interleaved_words(q, n, padded, t, k, low, high):
    """Write interleaved values of two bytes each."""
    address = q + 2 * interleaved_offset(n, padded, t, k)
    vec.store_four_i16(address, 8 * INTERLEAVED_TOKENS, low)
    vec.store_four_i16(address + 16 * INTERLEAVED_TOKENS, 8 * INTERLEAVED_TOKENS, high)


@inner
def round_sixteen(x, inverse, put, q, n, padded, t, k):
    """Write sixteen rounded values of x, from value k of token t on; return their sum."""
    factor = vec.splat_f32x8(inverse)
    low = vec.round_to_i32(vec.fmul(vec.load_f32x8(x), factor))
    high = vec.round_to_i32(vec.fmul(vec.load_f32x8(x + 32), factor))
    put(q, n, padded, t, k, low, high)
    return vec.sum_i32x8(vec.add(low, high))


@inner
def quantize_256(x, put, n, padded, t, k, q, d, sums):
    """Write one group of q8_k: 256 values, an f32 scale, 16 sums of 16 and 8 sums of 32 (int16)."""
    top = largest(x, 256)
    vec.store_f32(d, top / 127.0)
    inverse = 127.0 / top if top > 0.0 else 0.0
    for g in range(8):
        low = round_sixteen(x + 128 * g, inverse, put, q, n, padded, t, k + 32 * g)
        high = round_sixteen(x + 128 * g + 64, inverse, put, q, n, padded, t, k + 32 * g + 16)
        vec.store_i16(sums + 4 * g, low)
        vec.store_i16(sums + 4 * g + 2, high)
        vec.store_i16(sums + SUMS_OF_32 + 2 * g, low + high)


@inner
def quantize_32(x, put, n, padded, t, k, q, d, sums):
    """Write one group of q8_0: 32 values, an f32 scale rounded to f16, an int32 sum."""
    top = largest(x, 32)
    vec.store_f32(d, vec.round_to_f16(top / 127.0))
    inverse = 127.0 / top if top > 0.0 else 0.0
    low = round_sixteen(x, inverse, put, q, n, padded, t, k)
    vec.store_i32(sums, low + round_sixteen(x + 64, inverse, put, q, n, padded, t, k + 16))


def quantize_groups(quantize, group, sums_bytes, in_rows, put):
    """Make a kernel for all tokens of the step; n is a multiple of ``group``.

    Args:
        in_rows: Whether scales and sums are stored token by token, as decode reads them.
        put: (q, n, n_padded, t, k, low, high) -> None, writes values k to k + 15 of token t,
            given as eight int32 each.
    """

    def quantize_all(op, thread, n_threads):
        n, x, q, d, sums = vec.load_words(op, (F.n, F.x, F.q, F.d, F.sums))
        n_tokens = n_tokens_of(op)
        n_padded = (n_tokens + TILE_TOKENS - 1) // TILE_TOKENS * TILE_TOKENS
        first, last = share(n, 256, thread, n_threads)
        for t in range(n_tokens):
            for k in range(first, last, group):
                index = row_offset(n, t, k) // group if in_rows else k // group * n_padded + t
                quantize(
                    x + 4 * (t * n + k),
                    put,
                    n,
                    n_padded,
                    t,
                    k,
                    q,
                    d + 4 * index,
                    sums + sums_bytes * index,
                )

    return quantize_all


_of_256 = partial(quantize_groups, quantize_256, 256, SUMS_K_BYTES)
_of_32 = partial(quantize_groups, quantize_32, 32, 4)
q8_k, q8_k_paired, q8_k_bytes, q8_k_words = kernels_of(
    __name__,
    q8_k=_of_256(True, put_in_row),
    q8_k_paired=_of_256(True, put_paired_256),
    q8_k_bytes=_of_256(False, put_interleaved),
    q8_k_words=_of_256(False, put_interleaved_words),
)
q8_0, q8_0_paired, q8_0_fours, q8_0_planes8, q8_0_planes4, q8_0_bytes, q8_0_words = kernels_of(
    __name__,
    q8_0=_of_32(True, put_in_row),
    q8_0_paired=_of_32(True, put_paired_32),
    q8_0_fours=_of_32(True, put_fours_32),
    q8_0_planes8=_of_32(True, put_planes_8),
    q8_0_planes4=_of_32(True, put_planes_4),
    q8_0_bytes=_of_32(False, put_interleaved),
    q8_0_words=_of_32(False, put_interleaved_words),
)
"""Kernels for decode, in the orders that types read, and for prefill with products of bytes or of
int16."""

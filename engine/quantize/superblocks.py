"""Quantisation to Q2_K to Q6_K and IQ4_XS: blocks of 256 weights whose sub-blocks' scales have a
scale.

A block has 8 sub-blocks of 32 or 16 of 16. The scales of sub-blocks are searched and rounded to
codes. Then the two numbers of the block, the scales of its scales and of its minima, are computed
again for the resulting codes, twice.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner, kernel
from engine.quantize.blocks import (
    BLOCKS_PER_ROW,
    IMPORTANCE,
    N_BLOCKS,
    OUT,
    SCRATCH,
    SOURCE,
    signed_3,
    signed_6,
)
from engine.quantize.lanes import (
    CODES,
    MINIMA,
    Q_SUM,
    QQ,
    SCALES,
    VALUES,
    WEIGHTS,
    XQ,
    code,
    inverse,
    lane,
    nearest,
)
from engine.quantize.search import scale_and_minimum, scale_only
from engine.quantize.table import entry_of, index_of
from engine.quantize.weights import load_group


@inner
def superblocks(size, search, write, op):
    """Quantise a block at a time: search the scales of its sub-blocks, eight at a time, and write
    it."""
    source = vec.load_i64(op + SOURCE)
    importance = vec.load_i64(op + IMPORTANCE)
    out = vec.load_i64(op + OUT)
    scratch = vec.load_i64(op + SCRATCH)
    n_blocks = vec.load_i64(op + N_BLOCKS)
    per_row = vec.load_i64(op + BLOCKS_PER_ROW)
    n_sub = 256 // size
    for b in range(n_blocks):
        for group in range(n_sub // 8):
            first = n_sub * b + 8 * group
            group_scratch = scratch + 32 * size * group
            load_group(
                source, importance, first, n_sub * n_blocks, n_sub * per_row, size, group_scratch
            )
            search(group_scratch, scratch + 32 * group)
        write(out, b, scratch)


@inner
def largest_of(address, n):
    """Return the number of largest magnitude, with its sign."""
    top = np.float32(0.0)
    for k in range(n):
        v = vec.load_f32(address + 4 * k)
        if abs(v) > abs(top):
            top = v
    return top


@inner
def to_codes(address, n, d, least, most):
    """Replace n scales by the nearest multiples of d."""
    inverse_d = vec.splat_f32x8(1 / d if d != 0 else np.float32(0.0))
    for scale_address in range(address, address + 4 * n, 32):
        v = nearest(
            vec.fmul(vec.load_f32x8(scale_address), inverse_d),
            vec.splat_f32x8(least),
            vec.splat_f32x8(most),
        )
        vec.store_f32x8(scale_address, v)


@inner
def best_scale(rounded, scratch, size, d):
    """Return the best scale of a block, given the codes of its scales; d gives the codes of its
    values."""
    total_xq = total_qq = np.float32(0.0)
    for group in range(32 // size):
        scale = vec.load_f32x8(scratch + SCALES + 32 * group)
        group_scratch = scratch + 32 * size * group
        inverse_scale = inverse(vec.fmul(scale, vec.splat_f32x8(d)))
        xq = vec.splat_f32x8(0.0)
        qq = vec.splat_f32x8(0.0)
        for i in range(size):
            v = vec.load_f32x8(group_scratch + VALUES + 32 * i)
            q = rounded(vec.fmul(v, inverse_scale))
            wq = vec.fmul(vec.load_f32x8(group_scratch + WEIGHTS + 32 * i), q)
            xq = vec.fma(wq, v, xq)
            qq = vec.fma(wq, q, qq)
        total_xq += vec.sum_f32x8(vec.fmul(scale, xq))
        total_qq += vec.sum_f32x8(vec.fmul(vec.fmul(scale, scale), qq))
    return vec.round_to_f16(total_xq / total_qq if total_qq > 0 else d)


@inner
def fit_scale(rounded, scratch, size, least, most):
    """Replace a block's scales by their codes, and return the block's scale.

    Codes are from ``least``, which is negative, to ``most``.
    """
    n = 256 // size
    d = vec.round_to_f16(largest_of(scratch + SCALES, n) / np.float32(least))
    to_codes(scratch + SCALES, n, d, least, most)
    for _ in range(2):
        d = best_scale(rounded, scratch, size, d)
    return d


@inner
def codes_of(rounded, offset, scratch, size, d):
    """Store the codes of a block's values, from 0 on."""
    for group in range(32 // size):
        group_scratch = scratch + 32 * size * group
        inverse_scale = inverse(
            vec.fmul(vec.load_f32x8(scratch + SCALES + 32 * group), vec.splat_f32x8(d))
        )
        for i in range(size):
            q = rounded(vec.fmul(vec.load_f32x8(group_scratch + VALUES + 32 * i), inverse_scale))
            vec.store_f32x8(group_scratch + CODES + 32 * i, vec.fadd(q, vec.splat_f32x8(offset)))


@inner
def best_scale_and_minimum(scratch, size, most, d, dmin):
    """Return the best scales of scales and minima; a value is ``d scale q - dmin minimum``."""
    zero = vec.splat_f32x8(0.0)
    limit = vec.splat_f32x8(most)
    aa = ab = bb = xa = xb = 0.0
    for group in range(32 // size):
        scale = vec.load_f32x8(scratch + SCALES + 32 * group)
        minimum = vec.load_f32x8(scratch + MINIMA + 32 * group)
        inverse_scale = inverse(vec.fmul(scale, vec.splat_f32x8(d)))
        low = vec.fmul(minimum, vec.splat_f32x8(dmin))
        group_scratch = scratch + 32 * size * group
        xq = zero
        qq = zero
        q_sum = zero
        x_sum = zero
        total = zero
        for i in range(size):
            v = vec.load_f32x8(group_scratch + VALUES + 32 * i)
            w = vec.load_f32x8(group_scratch + WEIGHTS + 32 * i)
            q = nearest(vec.fmul(vec.fadd(v, low), inverse_scale), zero, limit)
            wq = vec.fmul(w, q)
            xq = vec.fma(wq, v, xq)
            qq = vec.fma(wq, q, qq)
            q_sum = vec.fadd(q_sum, wq)
            x_sum = vec.fma(w, v, x_sum)
            total = vec.fadd(total, w)
        aa += vec.sum_f32x8(vec.fmul(vec.fmul(scale, scale), qq))
        ab += vec.sum_f32x8(vec.fmul(vec.fmul(scale, minimum), q_sum))
        bb += vec.sum_f32x8(vec.fmul(vec.fmul(minimum, minimum), total))
        xa += vec.sum_f32x8(vec.fmul(scale, xq))
        xb += vec.sum_f32x8(vec.fmul(minimum, x_sum))
    inverse_scale = aa * bb - ab * ab
    if inverse_scale > 1e-4 * aa * bb:
        new_d = (xa * bb - ab * xb) / inverse_scale
        new_dmin = (xa * ab - aa * xb) / inverse_scale
        if new_d > 0 and new_dmin >= 0:
            return vec.round_to_f16(np.float32(new_d)), vec.round_to_f16(np.float32(new_dmin))
    return d, dmin


@inner
def fit_scale_and_minimum(scratch, size, most, most_scale):
    """Replace a block's scales and minima by their codes, and return the scales of both.

    The minima are rounded first, then the best scales for the rounded minima are computed.
    """
    n = 256 // size
    dmin = vec.round_to_f16(largest_of(scratch + MINIMA, n) / np.float32(most_scale))
    to_codes(scratch + MINIMA, n, dmin, 0.0, most_scale)
    for address in range(scratch, scratch + 4 * n, 32):
        minimum = vec.fmul(vec.load_f32x8(address + MINIMA), vec.splat_f32x8(dmin))
        total = vec.fma(minimum, vec.load_f32x8(address + Q_SUM), vec.load_f32x8(address + XQ))
        vec.store_f32x8(address + SCALES, vec.fmul(total, inverse(vec.load_f32x8(address + QQ))))
    d = vec.round_to_f16(largest_of(scratch + SCALES, n) / np.float32(most_scale))
    to_codes(scratch + SCALES, n, d, 0.0, most_scale)
    for _ in range(2):
        d, dmin = best_scale_and_minimum(scratch, size, most, d, dmin)
    return d, dmin


@inner
def codes_above_minimum(scratch, size, most, d, dmin):
    """Store the codes of a block's values."""
    zero = vec.splat_f32x8(0.0)
    limit = vec.splat_f32x8(most)
    for group in range(32 // size):
        group_scratch = scratch + 32 * size * group
        inverse_scale = inverse(
            vec.fmul(vec.load_f32x8(scratch + SCALES + 32 * group), vec.splat_f32x8(d))
        )
        low = vec.fmul(vec.load_f32x8(scratch + MINIMA + 32 * group), vec.splat_f32x8(dmin))
        for i in range(size):
            q = nearest(
                vec.fmul(
                    vec.fadd(vec.load_f32x8(group_scratch + VALUES + 32 * i), low), inverse_scale
                ),
                zero,
                limit,
            )
            vec.store_f32x8(group_scratch + CODES + 32 * i, q)


def search_scales(rounded, reach, size, n_steps, step):
    """Make the function that searches the scales of eight sub-blocks."""

    @inner
    def search(group_scratch, scales):
        best = scale_only(
            rounded, reach, group_scratch + VALUES, group_scratch + WEIGHTS, size, n_steps, step
        )
        vec.store_f32x8(scales + SCALES, best)

    return search


def search_both(most, size, first, step, n_steps):
    """Make the function that searches the scales and minima of eight sub-blocks."""

    @inner
    def search(group_scratch, scales):
        best = scale_and_minimum(
            group_scratch + VALUES, group_scratch + WEIGHTS, size, most, False, first, step, n_steps
        )
        _, minimum, xq, q_sum, qq = best
        vec.store_f32x8(scales + MINIMA, vec.fsub(vec.splat_f32x8(0.0), minimum))
        vec.store_f32x8(scales + XQ, xq)
        vec.store_f32x8(scales + Q_SUM, q_sum)
        vec.store_f32x8(scales + QQ, qq)

    return search


@inner
def write_low_bits(out, scratch, size):
    """Write the lower two bits of 256 codes.

    Each half has 32 bytes, of weights p, p + 32, p + 64 and p + 96.
    """
    for k in range(64):
        n = k >> 5
        p = k & 31
        bits = 0
        for j in range(4):
            bits |= (code(scratch, size, 128 * n + 32 * j + p) & 3) << (2 * j)
        vec.store_u8(out + k, bits)


@inner
def write_q2_k(out, b, scratch):
    """Write a block: scales, codes, scale, minimum."""
    block = out + 84 * b
    d, dmin = fit_scale_and_minimum(scratch, 16, 3.0, 15.0)
    codes_above_minimum(scratch, 16, 3.0, d, dmin)
    for g in range(16):
        vec.store_u8(block + g, lane(scratch + SCALES, g) | (lane(scratch + MINIMA, g) << 4))
    write_low_bits(block + 16, scratch, 16)
    vec.store_f16(block + 80, d)
    vec.store_f16(block + 82, dmin)


@inner
def write_q3_k(out, b, scratch):
    """Write a block: upper bits, lower two bits, scales, scale."""
    block = out + 110 * b
    d = fit_scale(signed_3, scratch, 16, -32.0, 31.0)
    codes_of(signed_3, 4.0, scratch, 16, d)
    for p in range(32):
        bits = 0
        for j in range(8):
            bits |= (code(scratch, 16, 32 * j + p) >> 2) << j
        vec.store_u8(block + p, bits)
    write_low_bits(block + 32, scratch, 16)
    for g in range(8):
        low = lane(scratch + SCALES, g) + 32
        high = lane(scratch + SCALES, g + 8) + 32
        vec.store_u8(block + 96 + g, (low & 15) | ((high & 15) << 4))
    for g in range(4):
        bits = 0
        for j in range(4):
            bits |= ((lane(scratch + SCALES, g + 4 * j) + 32) >> 4) << (2 * j)
        vec.store_u8(block + 104 + g, bits)
    vec.store_f16(block + 108, d)


@inner
def write_6_bit_scales(out, scratch):
    """Write eight scales and eight minima of six bits each."""
    for j in range(4):
        s = lane(scratch + SCALES, j)
        m = lane(scratch + MINIMA, j)
        s4 = lane(scratch + SCALES, j + 4)
        m4 = lane(scratch + MINIMA, j + 4)
        vec.store_u8(out + j, s | ((s4 >> 4) << 6))
        vec.store_u8(out + j + 4, m | ((m4 >> 4) << 6))
        vec.store_u8(out + j + 8, (s4 & 15) | ((m4 & 15) << 4))


@inner
def write_nibbles(out, scratch):
    """Write the lower four bits of 256 codes; two sub-blocks share 32 bytes."""
    for k in range(128):
        j = k >> 5
        p = k & 31
        low = code(scratch, 32, 64 * j + p)
        high = code(scratch, 32, 64 * j + 32 + p)
        vec.store_u8(out + k, (low & 15) | ((high & 15) << 4))


@inner
def write_q4_k(out, b, scratch):
    """Write a block: scale, minimum, scales, codes."""
    block = out + 144 * b
    d, dmin = fit_scale_and_minimum(scratch, 32, 15.0, 63.0)
    codes_above_minimum(scratch, 32, 15.0, d, dmin)
    vec.store_f16(block, d)
    vec.store_f16(block + 2, dmin)
    write_6_bit_scales(block + 4, scratch)
    write_nibbles(block + 16, scratch)


@inner
def write_q5_k(out, b, scratch):
    """Write a block: scale, minimum, scales, fifth bits, lower four bits."""
    block = out + 176 * b
    d, dmin = fit_scale_and_minimum(scratch, 32, 31.0, 63.0)
    codes_above_minimum(scratch, 32, 31.0, d, dmin)
    vec.store_f16(block, d)
    vec.store_f16(block + 2, dmin)
    write_6_bit_scales(block + 4, scratch)
    for p in range(32):
        bits = 0
        for j in range(8):
            bits |= (code(scratch, 32, 32 * j + p) >> 4) << j
        vec.store_u8(block + 16 + p, bits)
    write_nibbles(block + 48, scratch)


@inner
def write_q6_k(out, b, scratch):
    """Write a block: lower four bits, upper two bits, scales, scale."""
    block = out + 210 * b
    d = fit_scale(signed_6, scratch, 16, -128.0, 127.0)
    codes_of(signed_6, 32.0, scratch, 16, d)
    for k in range(128):
        n = k >> 6
        j = (k >> 5) & 1
        p = k & 31
        low = code(scratch, 16, 128 * n + 32 * j + p)
        high = code(scratch, 16, 128 * n + 64 + 32 * j + p)
        vec.store_u8(block + k, (low & 15) | ((high & 15) << 4))
    for k in range(64):
        n = k >> 5
        p = k & 31
        bits = 0
        for j in range(4):
            bits |= (code(scratch, 16, 128 * n + 32 * j + p) >> 4) << (2 * j)
        vec.store_u8(block + 128 + k, bits)
    for g in range(16):
        vec.store_i8(block + 192 + g, lane(scratch + SCALES, g))
    vec.store_f16(block + 208, d)


@inner
def write_iq4_xs(out, b, scratch):
    """Write a block: scale, upper and lower bits of the scales, indices of entries."""
    block = out + 136 * b
    d = fit_scale(entry_of, scratch, 32, -32.0, 31.0)
    codes_of(index_of, 0.0, scratch, 32, d)
    high = 0
    low = 0
    for j in range(8):
        s = lane(scratch + SCALES, j) + 32
        high |= (s >> 4) << (2 * j)
        low |= (s & 15) << (4 * j)
    vec.store_f16(block, d)
    vec.store_i16(block + 2, high)
    vec.store_i32(block + 4, low)
    for j in range(8):
        for p in range(16):
            first = code(scratch, 32, 32 * j + p)
            second = code(scratch, 32, 32 * j + 16 + p)
            vec.store_u8(block + 8 + 16 * j + p, first | (second << 4))


search_q2_k = search_both(3.0, 16, -1.0, 0.1, 21)
search_q3_k = search_scales(signed_3, 4.0, 16, 5, 0.2)
search_q4_k = search_both(15.0, 32, -1.0, 0.1, 21)
search_q5_k = search_both(31.0, 32, -1.0, 0.1, 21)
search_q6_k = search_scales(signed_6, 32.0, 16, 5, 0.2)
search_iq4_xs = search_scales(entry_of, 120.0, 32, 5, 4.0)


@kernel
def q2_k(op, thread, n_threads):
    """Quantise rows to Q2_K."""
    superblocks(16, search_q2_k, write_q2_k, op)


@kernel
def q3_k(op, thread, n_threads):
    """Quantise rows to Q3_K."""
    superblocks(16, search_q3_k, write_q3_k, op)


@kernel
def q4_k(op, thread, n_threads):
    """Quantise rows to Q4_K."""
    superblocks(32, search_q4_k, write_q4_k, op)


@kernel
def q5_k(op, thread, n_threads):
    """Quantise rows to Q5_K."""
    superblocks(32, search_q5_k, write_q5_k, op)


@kernel
def q6_k(op, thread, n_threads):
    """Quantise rows to Q6_K."""
    superblocks(16, search_q6_k, write_q6_k, op)


@kernel
def iq4_xs(op, thread, n_threads):
    """Quantise rows to IQ4_XS."""
    superblocks(32, search_iq4_xs, write_iq4_xs, op)

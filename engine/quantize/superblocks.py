"""Types whose sub-blocks' scales have a scale: Q2_K to Q6_K, and IQ4_XS; 256 values, in 8
sub-blocks of 32 or 16 of 16.

The sub-blocks' scales are searched, rounded to codes of their own, and then the two numbers of the
block, its scale and its minima's, are computed again for the codes that came of it, twice.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner, kernel
from engine.quantize.blocks import (
    BLOCKS_PER_ROW,
    IMPORTANCE,
    N_BLOCKS,
    OUT,
    ROOM,
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
from engine.quantize.table import entry_of, number_of
from engine.quantize.weights import load_group


@inner
def superblocks(size, search, write, op):
    """Take a block at a time: search its sub-blocks' scales eight by eight, and write it."""
    source = vec.load_i64(op + SOURCE)
    importance = vec.load_i64(op + IMPORTANCE)
    out = vec.load_i64(op + OUT)
    room = vec.load_i64(op + ROOM)
    n_blocks = vec.load_i64(op + N_BLOCKS)
    per_row = vec.load_i64(op + BLOCKS_PER_ROW)
    n_sub = 256 // size
    for b in range(n_blocks):
        for group in range(n_sub // 8):
            first = n_sub * b + 8 * group
            at = room + 32 * size * group
            load_group(source, importance, first, n_sub * n_blocks, n_sub * per_row, size, at)
            search(at, room + 32 * group)
        write(out, b, room)


@inner
def largest_of(address, n):
    """The number of the largest magnitude, with its sign."""
    top = np.float32(0.0)
    for k in range(n):
        v = vec.load_f32(address + 4 * k)
        if abs(v) > abs(top):
            top = v
    return top


@inner
def to_codes(address, n, d, least, most):
    """Replace n scales by the nearest multiples of d."""
    over = vec.splat_f32x8(1 / d if d != 0 else np.float32(0.0))
    for at in range(address, address + 4 * n, 32):
        v = nearest(
            vec.fmul(vec.load_f32x8(at), over), vec.splat_f32x8(least), vec.splat_f32x8(most)
        )
        vec.store_f32x8(at, v)


@inner
def best_scale(rounded, room, size, d):
    """The best scale of a block whose scales have codes, once its values have codes too; d gives
    these."""
    total_xq = total_qq = np.float32(0.0)
    for group in range(32 // size):
        scale = vec.load_f32x8(room + SCALES + 32 * group)
        at = room + 32 * size * group
        over = inverse(vec.fmul(scale, vec.splat_f32x8(d)))
        xq = vec.splat_f32x8(0.0)
        qq = vec.splat_f32x8(0.0)
        for i in range(size):
            v = vec.load_f32x8(at + VALUES + 32 * i)
            q = rounded(vec.fmul(v, over))
            wq = vec.fmul(vec.load_f32x8(at + WEIGHTS + 32 * i), q)
            xq = vec.fma(wq, v, xq)
            qq = vec.fma(wq, q, qq)
        total_xq += vec.sum_f32x8(vec.fmul(scale, xq))
        total_qq += vec.sum_f32x8(vec.fmul(vec.fmul(scale, scale), qq))
    return vec.round_to_f16(total_xq / total_qq if total_qq > 0 else d)


@inner
def fit_scale(rounded, room, size, least, most):
    """Give a block's scales their codes, from ``least``, which is negative; return the block's
    scale."""
    n = 256 // size
    d = vec.round_to_f16(largest_of(room + SCALES, n) / np.float32(least))
    to_codes(room + SCALES, n, d, least, most)
    for _ in range(2):
        d = best_scale(rounded, room, size, d)
    return d


@inner
def codes_of(rounded, offset, room, size, d):
    """Leave the codes of a block's values, from 0 on."""
    for group in range(32 // size):
        at = room + 32 * size * group
        over = inverse(vec.fmul(vec.load_f32x8(room + SCALES + 32 * group), vec.splat_f32x8(d)))
        for i in range(size):
            q = rounded(vec.fmul(vec.load_f32x8(at + VALUES + 32 * i), over))
            vec.store_f32x8(at + CODES + 32 * i, vec.fadd(q, vec.splat_f32x8(offset)))


@inner
def best_scale_and_minimum(room, size, most, d, dmin):
    """The same with minima, and the minima's scale; a value is ``d scale q - dmin minimum``."""
    zero = vec.splat_f32x8(0.0)
    limit = vec.splat_f32x8(most)
    aa = ab = bb = xa = xb = 0.0
    for group in range(32 // size):
        scale = vec.load_f32x8(room + SCALES + 32 * group)
        minimum = vec.load_f32x8(room + MINIMA + 32 * group)
        over = inverse(vec.fmul(scale, vec.splat_f32x8(d)))
        low = vec.fmul(minimum, vec.splat_f32x8(dmin))
        at = room + 32 * size * group
        xq = zero
        qq = zero
        q_sum = zero
        x_sum = zero
        total = zero
        for i in range(size):
            v = vec.load_f32x8(at + VALUES + 32 * i)
            w = vec.load_f32x8(at + WEIGHTS + 32 * i)
            q = nearest(vec.fmul(vec.fadd(v, low), over), zero, limit)
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
    over = aa * bb - ab * ab
    if over > 1e-4 * aa * bb:
        new = (xa * bb - ab * xb) / over
        new_min = (xa * ab - aa * xb) / over
        if new > 0 and new_min >= 0:
            return vec.round_to_f16(np.float32(new)), vec.round_to_f16(np.float32(new_min))
    return d, dmin


@inner
def fit_scale_and_minimum(room, size, most, most_scale):
    """Give a block's scales and minima their codes; return the two numbers that they are multiplied
    by.

    The minima are rounded first, and the best scales computed for what they are then.
    """
    n = 256 // size
    dmin = vec.round_to_f16(largest_of(room + MINIMA, n) / np.float32(most_scale))
    to_codes(room + MINIMA, n, dmin, 0.0, most_scale)
    for at in range(room, room + 4 * n, 32):
        minimum = vec.fmul(vec.load_f32x8(at + MINIMA), vec.splat_f32x8(dmin))
        total = vec.fma(minimum, vec.load_f32x8(at + Q_SUM), vec.load_f32x8(at + XQ))
        vec.store_f32x8(at + SCALES, vec.fmul(total, inverse(vec.load_f32x8(at + QQ))))
    d = vec.round_to_f16(largest_of(room + SCALES, n) / np.float32(most_scale))
    to_codes(room + SCALES, n, d, 0.0, most_scale)
    for _ in range(2):
        d, dmin = best_scale_and_minimum(room, size, most, d, dmin)
    return d, dmin


@inner
def codes_above_minimum(room, size, most, d, dmin):
    """Leave the codes of a block's values."""
    zero = vec.splat_f32x8(0.0)
    limit = vec.splat_f32x8(most)
    for group in range(32 // size):
        at = room + 32 * size * group
        over = inverse(vec.fmul(vec.load_f32x8(room + SCALES + 32 * group), vec.splat_f32x8(d)))
        low = vec.fmul(vec.load_f32x8(room + MINIMA + 32 * group), vec.splat_f32x8(dmin))
        for i in range(size):
            q = nearest(
                vec.fmul(vec.fadd(vec.load_f32x8(at + VALUES + 32 * i), low), over), zero, limit
            )
            vec.store_f32x8(at + CODES + 32 * i, q)


def search_scales(rounded, reach, size, n_steps, step):
    """Return what searches the scales of eight sub-blocks."""

    @inner
    def search(at, scales):
        found = scale_only(rounded, reach, at + VALUES, at + WEIGHTS, size, n_steps, step)
        vec.store_f32x8(scales + SCALES, found)

    return search


def search_both(most, size, first, step, n_steps):
    """Return what searches the scales and minima of eight sub-blocks."""

    @inner
    def search(at, scales):
        found = scale_and_minimum(
            at + VALUES, at + WEIGHTS, size, most, False, first, step, n_steps
        )
        _, minimum, xq, q_sum, qq = found
        vec.store_f32x8(scales + MINIMA, vec.fsub(vec.splat_f32x8(0.0), minimum))
        vec.store_f32x8(scales + XQ, xq)
        vec.store_f32x8(scales + Q_SUM, q_sum)
        vec.store_f32x8(scales + QQ, qq)

    return search


@inner
def twos(out, room, size):
    """Write the lower two bits of 256 codes: of each half 32 bytes, of weights p, p + 32, p + 64
    and p + 96."""
    for k in range(64):
        n = k >> 5
        p = k & 31
        bits = 0
        for j in range(4):
            bits |= (code(room, size, 128 * n + 32 * j + p) & 3) << (2 * j)
        vec.store_u8(out + k, bits)


@inner
def write_q2_k(out, b, room):
    """Scales, codes, scale, minimum."""
    at = out + 84 * b
    d, dmin = fit_scale_and_minimum(room, 16, 3.0, 15.0)
    codes_above_minimum(room, 16, 3.0, d, dmin)
    for g in range(16):
        vec.store_u8(at + g, lane(room + SCALES, g) | (lane(room + MINIMA, g) << 4))
    twos(at + 16, room, 16)
    vec.store_f16(at + 80, d)
    vec.store_f16(at + 82, dmin)


@inner
def write_q3_k(out, b, room):
    """Upper bits, lower two, scales, scale."""
    at = out + 110 * b
    d = fit_scale(signed_3, room, 16, -32.0, 31.0)
    codes_of(signed_3, 4.0, room, 16, d)
    for p in range(32):
        bits = 0
        for j in range(8):
            bits |= (code(room, 16, 32 * j + p) >> 2) << j
        vec.store_u8(at + p, bits)
    twos(at + 32, room, 16)
    for g in range(8):
        low = lane(room + SCALES, g) + 32
        high = lane(room + SCALES, g + 8) + 32
        vec.store_u8(at + 96 + g, (low & 15) | ((high & 15) << 4))
    for g in range(4):
        bits = 0
        for j in range(4):
            bits |= ((lane(room + SCALES, g + 4 * j) + 32) >> 4) << (2 * j)
        vec.store_u8(at + 104 + g, bits)
    vec.store_f16(at + 108, d)


@inner
def write_sixes(out, room):
    """Write eight scales and eight minima of six bits each."""
    for j in range(4):
        s = lane(room + SCALES, j)
        m = lane(room + MINIMA, j)
        s4 = lane(room + SCALES, j + 4)
        m4 = lane(room + MINIMA, j + 4)
        vec.store_u8(out + j, s | ((s4 >> 4) << 6))
        vec.store_u8(out + j + 4, m | ((m4 >> 4) << 6))
        vec.store_u8(out + j + 8, (s4 & 15) | ((m4 & 15) << 4))


@inner
def nibble_pairs(out, room):
    """Write the lower four bits of 256 codes: two sub-blocks share 32 bytes."""
    for k in range(128):
        j = k >> 5
        p = k & 31
        low = code(room, 32, 64 * j + p)
        high = code(room, 32, 64 * j + 32 + p)
        vec.store_u8(out + k, (low & 15) | ((high & 15) << 4))


@inner
def write_q4_k(out, b, room):
    """Scale, minimum, scales, codes."""
    at = out + 144 * b
    d, dmin = fit_scale_and_minimum(room, 32, 15.0, 63.0)
    codes_above_minimum(room, 32, 15.0, d, dmin)
    vec.store_f16(at, d)
    vec.store_f16(at + 2, dmin)
    write_sixes(at + 4, room)
    nibble_pairs(at + 16, room)


@inner
def write_q5_k(out, b, room):
    """Scale, minimum, scales, fifth bits, the other four."""
    at = out + 176 * b
    d, dmin = fit_scale_and_minimum(room, 32, 31.0, 63.0)
    codes_above_minimum(room, 32, 31.0, d, dmin)
    vec.store_f16(at, d)
    vec.store_f16(at + 2, dmin)
    write_sixes(at + 4, room)
    for p in range(32):
        bits = 0
        for j in range(8):
            bits |= (code(room, 32, 32 * j + p) >> 4) << j
        vec.store_u8(at + 16 + p, bits)
    nibble_pairs(at + 48, room)


@inner
def write_q6_k(out, b, room):
    """Lower four bits, upper two, scales, scale."""
    at = out + 210 * b
    d = fit_scale(signed_6, room, 16, -128.0, 127.0)
    codes_of(signed_6, 32.0, room, 16, d)
    for k in range(128):
        n = k >> 6
        j = (k >> 5) & 1
        p = k & 31
        low = code(room, 16, 128 * n + 32 * j + p)
        high = code(room, 16, 128 * n + 64 + 32 * j + p)
        vec.store_u8(at + k, (low & 15) | ((high & 15) << 4))
    for k in range(64):
        n = k >> 5
        p = k & 31
        bits = 0
        for j in range(4):
            bits |= (code(room, 16, 128 * n + 32 * j + p) >> 4) << (2 * j)
        vec.store_u8(at + 128 + k, bits)
    for g in range(16):
        vec.store_i8(at + 192 + g, lane(room + SCALES, g))
    vec.store_f16(at + 208, d)


@inner
def write_iq4_xs(out, b, room):
    """Scale, upper bits of the scales, lower ones, numbers of entries."""
    at = out + 136 * b
    d = fit_scale(entry_of, room, 32, -32.0, 31.0)
    codes_of(number_of, 0.0, room, 32, d)
    high = 0
    low = 0
    for j in range(8):
        s = lane(room + SCALES, j) + 32
        high |= (s >> 4) << (2 * j)
        low |= (s & 15) << (4 * j)
    vec.store_f16(at, d)
    vec.store_i16(at + 2, high)
    vec.store_i32(at + 4, low)
    for j in range(8):
        for p in range(16):
            first = code(room, 32, 32 * j + p)
            second = code(room, 32, 32 * j + 16 + p)
            vec.store_u8(at + 8 + 16 * j + p, first | (second << 4))


search_q2_k = search_both(3.0, 16, -1.0, 0.1, 21)
search_q3_k = search_scales(signed_3, 4.0, 16, 5, 0.2)
search_q4_k = search_both(15.0, 32, -1.0, 0.1, 21)
search_q5_k = search_both(31.0, 32, -1.0, 0.1, 21)
search_q6_k = search_scales(signed_6, 32.0, 16, 5, 0.2)
search_iq4_xs = search_scales(entry_of, 120.0, 32, 5, 4.0)


@kernel
def q2_k(op, thread, n_threads):
    """Rows to Q2_K."""
    superblocks(16, search_q2_k, write_q2_k, op)


@kernel
def q3_k(op, thread, n_threads):
    """Rows to Q3_K."""
    superblocks(16, search_q3_k, write_q3_k, op)


@kernel
def q4_k(op, thread, n_threads):
    """Rows to Q4_K."""
    superblocks(32, search_q4_k, write_q4_k, op)


@kernel
def q5_k(op, thread, n_threads):
    """Rows to Q5_K."""
    superblocks(32, search_q5_k, write_q5_k, op)


@kernel
def q6_k(op, thread, n_threads):
    """Rows to Q6_K."""
    superblocks(16, search_q6_k, write_q6_k, op)


@kernel
def iq4_xs(op, thread, n_threads):
    """Rows to IQ4_XS."""
    superblocks(32, search_iq4_xs, write_iq4_xs, op)

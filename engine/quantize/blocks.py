"""Quantisation to blocks of 32 weights: Q4_0, Q5_0, Q8_0 and IQ4_NL with a scale, Q4_1 and Q5_1
with a minimum, too.

Codes are computed with the scale as stored, so its rounding to f16 costs nothing more. If columns
differ in importance, scales far from the usual ones may be best, and more are tried.
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.quantize.lanes import CODES, MINIMA, SCALES, VALUES, WEIGHTS, inverse, lane, nearest
from engine.quantize.search import largest, scale_and_minimum, scale_only
from engine.quantize.table import entry_of, index_of
from engine.quantize.weights import load_group

SOURCE, IMPORTANCE, OUT, N_BLOCKS, BLOCKS_PER_ROW, SCRATCH = range(0, 48, 8)
"""Words of an operation's record, as byte offsets: addresses, and numbers of blocks."""


def signed(bits):
    """Make the function that rounds to signed codes of some bits."""
    least = -(1 << (bits - 1))
    most = (1 << (bits - 1)) - 1

    @inner
    def rounded(v):
        return nearest(v, vec.splat_f32x8(least), vec.splat_f32x8(most))

    return rounded


signed_3, signed_4, signed_5, signed_6, signed_8 = (signed(bits) for bits in (3, 4, 5, 6, 8))


@inner
def rounded_to_f16(v, address):
    """Round scales to f16, store them and return them."""
    vec.store_f32x8(address, v)
    for scale_address in range(address, address + 32, 4):
        vec.store_f32(scale_address, vec.round_to_f16(vec.load_f32(scale_address)))
    return vec.load_f32x8(address)


@inner
def groups(write_group, op):
    """Quantise eight blocks at a time; the last eight may include some that are done."""
    source = vec.load_i64(op + SOURCE)
    importance = vec.load_i64(op + IMPORTANCE)
    out = vec.load_i64(op + OUT)
    scratch = vec.load_i64(op + SCRATCH)
    n_blocks = vec.load_i64(op + N_BLOCKS)
    blocks_per_row = vec.load_i64(op + BLOCKS_PER_ROW)
    for block in range(0, n_blocks, 8):
        first = min(block, n_blocks - 8)
        load_group(source, importance, first, n_blocks, blocks_per_row, 32, scratch)
        write_group(out, first, scratch, importance != 0)


@inner
def write_nibbles(out, scratch, block):
    """Write the lower four bits of a block's codes: the first 16 in the low nibbles, the others in
    the high ones."""
    for i in range(16):
        low = lane(scratch + CODES + 32 * i, block)
        high = lane(scratch + CODES + 32 * (i + 16), block)
        vec.store_u8(out + i, (low & 15) | ((high & 15) << 4))


@inner
def write_fifth_bits(out, scratch, block):
    """Write the fifth bit of each code."""
    bits = 0
    for i in range(32):
        bits |= (lane(scratch + CODES + 32 * i, block) >> 4) << i
    vec.store_i32(out, bits)


def signed_group(rounded, reach, type_bytes, has_fifth):
    """Make the function that writes eight blocks with a scale, of codes from ``-reach`` to ``reach
    - 1``."""

    @inner
    def write_group(out, first, scratch, is_weighted):
        x = scratch + VALUES
        offset = vec.splat_f32x8(reach)
        d = rounded_to_f16(
            scale_only(rounded, reach, x, scratch + WEIGHTS, 32, 5 if is_weighted else 2, 0.2),
            scratch + SCALES,
        )
        inverse_d = inverse(d)
        for i in range(32):
            q = rounded(vec.fmul(vec.load_f32x8(x + 32 * i), inverse_d))
            vec.store_f32x8(scratch + CODES + 32 * i, vec.fadd(q, offset))
        for block in range(8):
            target = out + type_bytes * (first + block)
            vec.store_f16(target, vec.load_f32(scratch + SCALES + 4 * block))
            if has_fifth:
                write_fifth_bits(target + 2, scratch, block)
            write_nibbles(target + type_bytes - 16, scratch, block)

    return write_group


def group_with_minimum(most, type_bytes, has_fifth):
    """Make the function that writes eight blocks with a scale and a minimum, of codes from 0 to
    ``most``."""

    @inner
    def write_group(out, first, scratch, is_weighted):
        x = scratch + VALUES
        zero = vec.splat_f32x8(0.0)
        limit = vec.splat_f32x8(most)
        first_try, n_tries = (-1.0, 21) if is_weighted else (-0.6, 9)
        d, m, _, _, _ = scale_and_minimum(
            x, scratch + WEIGHTS, 32, most, True, first_try, 0.15, n_tries
        )
        d = rounded_to_f16(d, scratch + SCALES)
        m = rounded_to_f16(m, scratch + MINIMA)
        inverse_d = inverse(d)
        for i in range(32):
            q = nearest(vec.fmul(vec.fsub(vec.load_f32x8(x + 32 * i), m), inverse_d), zero, limit)
            vec.store_f32x8(scratch + CODES + 32 * i, q)
        for block in range(8):
            target = out + type_bytes * (first + block)
            vec.store_f16(target, vec.load_f32(scratch + SCALES + 4 * block))
            vec.store_f16(target + 2, vec.load_f32(scratch + MINIMA + 4 * block))
            if has_fifth:
                write_fifth_bits(target + 4, scratch, block)
            write_nibbles(target + type_bytes - 16, scratch, block)

    return write_group


@inner
def bytes_group(out, first, scratch, is_weighted):
    """Write eight blocks of signed bytes; the largest value decides the scale."""
    x = scratch + VALUES
    d = rounded_to_f16(
        vec.fmul(vec.fabs(largest(x, 32)), vec.splat_f32x8(1 / 127)), scratch + SCALES
    )
    inverse_d = inverse(d)
    for i in range(32):
        vec.store_f32x8(
            scratch + CODES + 32 * i, signed_8(vec.fmul(vec.load_f32x8(x + 32 * i), inverse_d))
        )
    for block in range(8):
        target = out + 34 * (first + block)
        vec.store_f16(target, vec.load_f32(scratch + SCALES + 4 * block))
        for i in range(32):
            vec.store_i8(target + 2 + i, lane(scratch + CODES + 32 * i, block))


@inner
def entries_group(out, first, scratch, is_weighted):
    """Write eight blocks of indices into the table."""
    x = scratch + VALUES
    d = rounded_to_f16(
        scale_only(entry_of, 120.0, x, scratch + WEIGHTS, 32, 5, 4.0), scratch + SCALES
    )
    inverse_d = inverse(d)
    for i in range(32):
        vec.store_f32x8(
            scratch + CODES + 32 * i, index_of(vec.fmul(vec.load_f32x8(x + 32 * i), inverse_d))
        )
    for block in range(8):
        target = out + 18 * (first + block)
        vec.store_f16(target, vec.load_f32(scratch + SCALES + 4 * block))
        write_nibbles(target + 2, scratch, block)


write_q4_0 = signed_group(signed_4, 8.0, 18, False)
write_q5_0 = signed_group(signed_5, 16.0, 22, True)
write_q4_1 = group_with_minimum(15.0, 20, False)
write_q5_1 = group_with_minimum(31.0, 24, True)


@kernel
def q4_0(op, thread, n_threads):
    """Quantise rows to Q4_0."""
    groups(write_q4_0, op)


@kernel
def q4_1(op, thread, n_threads):
    """Quantise rows to Q4_1."""
    groups(write_q4_1, op)


@kernel
def q5_0(op, thread, n_threads):
    """Quantise rows to Q5_0."""
    groups(write_q5_0, op)


@kernel
def q5_1(op, thread, n_threads):
    """Quantise rows to Q5_1."""
    groups(write_q5_1, op)


@kernel
def q8_0(op, thread, n_threads):
    """Quantise rows to Q8_0."""
    groups(bytes_group, op)


@kernel
def iq4_nl(op, thread, n_threads):
    """Quantise rows to IQ4_NL."""
    groups(entries_group, op)

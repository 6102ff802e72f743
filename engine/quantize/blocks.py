"""Types whose blocks of 32 stand alone: Q4_0, Q5_0, Q8_0 and IQ4_NL with a scale, Q4_1 and Q5_1
with a minimum too.

Codes are made with the scale that is stored, so that its rounding to a half costs nothing more.
Where columns differ in importance, scales far from the usual may be best, and more are tried.
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.quantize.lanes import CODES, MINIMA, SCALES, VALUES, WEIGHTS, inverse, lane, nearest
from engine.quantize.search import largest, scale_and_minimum, scale_only
from engine.quantize.table import entry_of, number_of
from engine.quantize.weights import load_group

SOURCE, IMPORTANCE, OUT, N_BLOCKS, BLOCKS_PER_ROW, ROOM = range(0, 48, 8)
"""Words of an operation's record, by their offset in bytes: addresses, and numbers of blocks."""


def signed(bits):
    """Return the rounding to signed codes of some bits."""
    least = -(1 << (bits - 1))
    most = (1 << (bits - 1)) - 1

    @inner
    def rounded(v):
        return nearest(v, vec.splat_f32x8(least), vec.splat_f32x8(most))

    return rounded


signed_3, signed_4, signed_5, signed_6, signed_8 = (signed(bits) for bits in (3, 4, 5, 6, 8))


@inner
def halved(v, address):
    """Round scales to halves and leave them in memory."""
    vec.store_f32x8(address, v)
    for at in range(address, address + 32, 4):
        vec.store_f32(at, vec.round_to_f16(vec.load_f32(at)))
    return vec.load_f32x8(address)


@inner
def groups(write_group, op):
    """Take eight blocks at a time, the last eight together with some that were done."""
    source = vec.load_i64(op + SOURCE)
    importance = vec.load_i64(op + IMPORTANCE)
    out = vec.load_i64(op + OUT)
    room = vec.load_i64(op + ROOM)
    n_blocks = vec.load_i64(op + N_BLOCKS)
    blocks_per_row = vec.load_i64(op + BLOCKS_PER_ROW)
    for at in range(0, n_blocks, 8):
        first = min(at, n_blocks - 8)
        load_group(source, importance, first, n_blocks, blocks_per_row, 32, room)
        write_group(out, first, room, importance != 0)


@inner
def nibbles(out, room, block):
    """Write the lower four bits of a block's codes: the first 16 in the low nibbles, the others in
    the high ones."""
    for i in range(16):
        low = lane(room + CODES + 32 * i, block)
        high = lane(room + CODES + 32 * (i + 16), block)
        vec.store_u8(out + i, (low & 15) | ((high & 15) << 4))


@inner
def fifth_bits(out, room, block):
    """Write the fifth bit of each code."""
    bits = 0
    for i in range(32):
        bits |= (lane(room + CODES + 32 * i, block) >> 4) << i
    vec.store_i32(out, bits)


def signed_group(rounded, reach, type_bytes, has_fifth):
    """Return what writes eight blocks with a scale, of codes from ``-reach`` to ``reach - 1``."""

    @inner
    def write_group(out, first, room, is_weighted):
        x = room + VALUES
        offset = vec.splat_f32x8(reach)
        d = halved(
            scale_only(rounded, reach, x, room + WEIGHTS, 32, 5 if is_weighted else 2, 0.2),
            room + SCALES,
        )
        over = inverse(d)
        for i in range(32):
            q = rounded(vec.fmul(vec.load_f32x8(x + 32 * i), over))
            vec.store_f32x8(room + CODES + 32 * i, vec.fadd(q, offset))
        for block in range(8):
            at = out + type_bytes * (first + block)
            vec.store_f16(at, vec.load_f32(room + SCALES + 4 * block))
            if has_fifth:
                fifth_bits(at + 2, room, block)
            nibbles(at + type_bytes - 16, room, block)

    return write_group


def group_with_minimum(most, type_bytes, has_fifth):
    """Return what writes eight blocks with a scale and a minimum, of codes from 0 to ``most``."""

    @inner
    def write_group(out, first, room, is_weighted):
        x = room + VALUES
        zero = vec.splat_f32x8(0.0)
        limit = vec.splat_f32x8(most)
        first_try, n_tries = (-1.0, 21) if is_weighted else (-0.6, 9)
        d, m, _, _, _ = scale_and_minimum(
            x, room + WEIGHTS, 32, most, True, first_try, 0.15, n_tries
        )
        d = halved(d, room + SCALES)
        m = halved(m, room + MINIMA)
        over = inverse(d)
        for i in range(32):
            q = nearest(vec.fmul(vec.fsub(vec.load_f32x8(x + 32 * i), m), over), zero, limit)
            vec.store_f32x8(room + CODES + 32 * i, q)
        for block in range(8):
            at = out + type_bytes * (first + block)
            vec.store_f16(at, vec.load_f32(room + SCALES + 4 * block))
            vec.store_f16(at + 2, vec.load_f32(room + MINIMA + 4 * block))
            if has_fifth:
                fifth_bits(at + 4, room, block)
            nibbles(at + type_bytes - 16, room, block)

    return write_group


@inner
def bytes_group(out, first, room, is_weighted):
    """Write eight blocks of signed bytes; the largest value decides the scale."""
    x = room + VALUES
    d = halved(vec.fmul(vec.fabs(largest(x, 32)), vec.splat_f32x8(1 / 127)), room + SCALES)
    over = inverse(d)
    for i in range(32):
        vec.store_f32x8(room + CODES + 32 * i, signed_8(vec.fmul(vec.load_f32x8(x + 32 * i), over)))
    for block in range(8):
        at = out + 34 * (first + block)
        vec.store_f16(at, vec.load_f32(room + SCALES + 4 * block))
        for i in range(32):
            vec.store_i8(at + 2 + i, lane(room + CODES + 32 * i, block))


@inner
def entries_group(out, first, room, is_weighted):
    """Write eight blocks of the table's entries."""
    x = room + VALUES
    d = halved(scale_only(entry_of, 120.0, x, room + WEIGHTS, 32, 5, 4.0), room + SCALES)
    over = inverse(d)
    for i in range(32):
        vec.store_f32x8(
            room + CODES + 32 * i, number_of(vec.fmul(vec.load_f32x8(x + 32 * i), over))
        )
    for block in range(8):
        at = out + 18 * (first + block)
        vec.store_f16(at, vec.load_f32(room + SCALES + 4 * block))
        nibbles(at + 2, room, block)


write_q4_0 = signed_group(signed_4, 8.0, 18, False)
write_q5_0 = signed_group(signed_5, 16.0, 22, True)
write_q4_1 = group_with_minimum(15.0, 20, False)
write_q5_1 = group_with_minimum(31.0, 24, True)


@kernel
def q4_0(op, thread, n_threads):
    """Rows to Q4_0."""
    groups(write_q4_0, op)


@kernel
def q4_1(op, thread, n_threads):
    """Rows to Q4_1."""
    groups(write_q4_1, op)


@kernel
def q5_0(op, thread, n_threads):
    """Rows to Q5_0."""
    groups(write_q5_0, op)


@kernel
def q5_1(op, thread, n_threads):
    """Rows to Q5_1."""
    groups(write_q5_1, op)


@kernel
def q8_0(op, thread, n_threads):
    """Rows to Q8_0."""
    groups(bytes_group, op)


@kernel
def iq4_nl(op, thread, n_threads):
    """Rows to IQ4_NL."""
    groups(entries_group, op)

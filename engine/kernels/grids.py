"""Blocks of 256 weights that are entries of a grid: decode, prefill and embedding of the IQ types below four bits.

A type writes what a block says into 192 bytes of room: offsets into its table, a byte of signs for eight weights (or of
what else they share), and sixteen scales. Everything after that is the same for all: entries are gathered, their signs
go to the activations, and whole numbers are multiplied and scaled. Any bits are within a grid: offsets are masked.

Of a type's functions, given below as they are called:

    prepare(block, room)           fills the room
    weights(block, room, j)        the j-th 32 weights: (magnitudes, signs), two i8x32
    d_of(block, d_y)               scale of the block times d_y, f32x8

and of the two kinds of types, with signs or raised:

    times(w, signs, y)             products of 32 weights as i16x16
    signed(w, signs)               the weights themselves, i8x32
    start(room, sums)              i32x8 that the sum of products begins with
    scale_of(room, j)              scales of the j-th 32 weights, i16x16
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels import matmul as tiles_of_bytes
from engine.kernels import matmul_wide as tiles_of_words
from engine.kernels.matmul import STORED_OF_16, walk_of_bytes
from engine.kernels.matmul_wide import walk_wide_k
from engine.kernels.matvec import ask_ahead, finish, finish_four
from engine.kernels.matvec_k import columns_k
from engine.kernels.records import MATMUL as F
from engine.kernels.records import STEP
from engine.kernels.share import CLAIM_BYTES, claim_rows
from engine.kernels.tiles import NARROW, WIDE
from engine.machine.level import FOURS_OFFSET, SUMS_FOURS

FOURS, EIGHTS, SIGNS, SCALES, ROOM_BYTES = 0, 64, 128, 160, 192
"""Places in the room: 64 offsets of entries of four weights, or 32 of eight; 32 bytes of signs; 16 int16 scales."""
ROOM_STEP = 256
"""From a block's room to the next one's: what was just written can be read in smaller parts only after a while."""
RAISED_BY = 9
"""Offset added to weights of the raised kind."""
ONE = np.float32(1.0)

odd_parities = vec.constant_i8x32([-128 if (k ^ k >> 1 ^ k >> 2 ^ k >> 3) & 1 else 0 for k in range(16)] * 2)


@inner
def even_signs(fields):
    """Bytes of eight signs from those of seven: the eighth makes the number of minus signs even."""
    folded = vec.and_(vec.xor(fields, vec.shift_right(fields, 4)), vec.splat_i8x32(15))
    return vec.or_(fields, vec.lookup16(odd_parities(), folded))


@inner
def store_signs_of_words(words, room):
    """Signs of 32 weights in each int32: four times seven bits."""
    first, second = (
        vec.and_(words, vec.splat_i32x8(0x7F)),
        vec.and_(vec.shift_left_i32(words, 1), vec.splat_i32x8(0x7F00)),
    )
    third, last = vec.shift_left_i32(words, 2), vec.shift_left_i32(words, 3)
    third, last = vec.and_(third, vec.splat_i32x8(0x7F0000)), vec.and_(last, vec.splat_i32x8(0x7F000000))
    vec.store_i8x32(room + SIGNS, even_signs(vec.bytes_of_i32x8(vec.or_(vec.or_(first, second), vec.or_(third, last)))))


@inner
def store_scales_of_words(words, room):
    """Scales 2 s + 1 of 32 weights, s being the upper four bits of each int32."""
    odd = vec.or_(vec.and_(vec.shift_lanes_right(words, 27), vec.splat_i32x8(30)), vec.splat_i32x8(1))
    vec.store_i32x8(room + SCALES, vec.or_(odd, vec.shift_left_i32(odd, 16)))


@inner
def signs_of(room, j):
    """The signs of the j-th 32 weights: 0xFF where there is a minus."""
    return vec.bits_to_bytes(vec.broadcast_4_bytes(room + SIGNS + 4 * j))


@inner
def turned(w, signs):
    """The same with the signs turned."""
    return vec.sub(vec.xor(w, signs), signs)


@inner
def times_signed(w, signs, y):
    """Products of magnitudes; their signs go to the activations."""
    return vec.maddubs(w, turned(y, signs))


@inner
def start_at_zero(room, sums):
    """Nothing but products."""
    return vec.splat_i32x8(0)


@inner
def raised_of(room, j):
    """Offsets of the j-th 32 weights: one byte for each eight of them."""
    return vec.byte_each_8(vec.broadcast_4_bytes(room + SIGNS + 4 * j))


@inner
def times_raised(w, signs, y):
    """Products of weights that are ``RAISED_BY`` too large."""
    return vec.maddubs(w, y)


@inner
def lowered(w, signs):
    """Such weights as they are."""
    return vec.sub(w, vec.splat_i8x32(RAISED_BY))


@inner
def start_lowered(room, sums):
    """Start a sum with the negative offset of such weights times all activations."""
    return vec.maddwd(vec.mul(vec.load_i16x16(room + SCALES), vec.splat_i16x16(-RAISED_BY)), vec.load_i16x16(sums))


@inner
def one_scale(room, j):
    """One for 32 weights."""
    return vec.as_i16x16(vec.broadcast_4_bytes(room + SCALES + 4 * j))


@inner
def two_scales(room, j):
    """Two, one in each half."""
    return vec.lane_of_two(one_scale(room, j))


@inner
def room_of(op, thread):
    """Address of a thread's room."""
    return vec.load_i64(op + F.scratch) + thread * vec.load_i64(op + F.scratch_bytes)


@inner
def one_column_grid(prepare, weights, d_of, times, start, scale_of, block_bytes, op, c, row, room):
    """One row with one column."""
    q, d, sums = columns_k(op, 256, c)
    acc = vec.splat_f32x8(0.0)
    block = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
    ahead, n_blocks = vec.load_i64(op + F.ahead), vec.load_i64(op + F.n_cols) // 256
    prepare(block, room)
    for i in range(n_blocks):
        ask_ahead(block, ahead, block_bytes)
        here = room + ROOM_STEP * (i & 1)
        prepare(block + (block_bytes if i + 1 < n_blocks else 0), room + ROOM_STEP * (~i & 1))
        vec.written()
        y, t = q + 256 * i, start(here, sums + 48 * i)
        for j in range(8):
            w, signs = weights(block, here, j)
            t = vec.add(t, vec.maddwd(times(w, signs, vec.load_i8x32(y + 32 * j)), scale_of(here, j)))
        acc = vec.fma(d_of(block, vec.load_f32(d + 4 * i)), vec.f32_of_i32x8(t), acc)
        block += block_bytes
    finish(op, c, row, vec.sum_f32x8(acc))


@inner
def four_columns_grid(prepare, weights, d_of, times, start, scale_of, block_bytes, op, c, row, room):
    """The same with two to four: weights are gathered once for all."""
    (q0, d0, s0), (q1, d1, s1) = columns_k(op, 256, c), columns_k(op, 256, c + 1)
    (q2, d2, s2), (q3, d3, s3) = columns_k(op, 256, c + 2), columns_k(op, 256, c + 3)
    a0, a1, a2, a3 = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    block = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
    ahead = vec.load_i64(op + F.ahead)
    for i in range(vec.load_i64(op + F.n_cols) // 256):
        ask_ahead(block, ahead, block_bytes)
        prepare(block, room)
        vec.written()
        t0, t1 = start(room, s0 + 48 * i), start(room, s1 + 48 * i)
        t2, t3 = start(room, s2 + 48 * i), start(room, s3 + 48 * i)
        for j in range(vec.rolled(8)):
            w, signs = weights(block, room, j)
            scale, at = scale_of(room, j), 256 * i + 32 * j
            t0 = vec.add(t0, vec.maddwd(times(w, signs, vec.load_i8x32(q0 + at)), scale))
            t1 = vec.add(t1, vec.maddwd(times(w, signs, vec.load_i8x32(q1 + at)), scale))
            t2 = vec.add(t2, vec.maddwd(times(w, signs, vec.load_i8x32(q2 + at)), scale))
            t3 = vec.add(t3, vec.maddwd(times(w, signs, vec.load_i8x32(q3 + at)), scale))
        a0 = vec.fma(d_of(block, vec.load_f32(d0 + 4 * i)), vec.f32_of_i32x8(t0), a0)
        a1 = vec.fma(d_of(block, vec.load_f32(d1 + 4 * i)), vec.f32_of_i32x8(t1), a1)
        a2 = vec.fma(d_of(block, vec.load_f32(d2 + 4 * i)), vec.f32_of_i32x8(t2), a2)
        a3 = vec.fma(d_of(block, vec.load_f32(d3 + 4 * i)), vec.f32_of_i32x8(t3), a3)
        block += block_bytes
    v0, v1 = vec.sum_f32x8(a0), vec.sum_f32x8(a1)
    if vec.load_i64(vec.load_i64(op + F.step) + STEP.n_tokens) == c + 2:
        finish(op, c, row, v0)
        finish(op, c + 1, row, v1)
    else:
        finish_four(op, c, row, v0, v1, vec.sum_f32x8(a2), vec.sum_f32x8(a3))


@inner
def matvec_grid(prepare, weights, d_of, times, start, scale_of, block_bytes, op, thread, n_threads):
    """All rows with one column."""
    room, turn = room_of(op, thread), 0
    while turn < n_threads:
        first, last, turn = claim_rows(op, 8, CLAIM_BYTES, thread, n_threads, turn)
        for row in range(first, last):
            one_column_grid(prepare, weights, d_of, times, start, scale_of, block_bytes, op, 0, row, room)


@inner
def few_grid(prepare, weights, d_of, times, start, scale_of, block_bytes, op, thread, n_threads):
    """All rows with the few columns of the step, a row with all of them before the next row."""
    n_tokens = vec.load_i64(vec.load_i64(op + F.step) + STEP.n_tokens)
    room, turn = room_of(op, thread), 0
    while turn < n_threads:
        first, last, turn = claim_rows(op, 8, CLAIM_BYTES, thread, n_threads, turn)
        for row in range(first, last):
            for c in range(0, n_tokens, 4):
                if n_tokens - c >= 2:
                    four_columns_grid(prepare, weights, d_of, times, start, scale_of, block_bytes, op, c, row, room)
                else:
                    one_column_grid(prepare, weights, d_of, times, start, scale_of, block_bytes, op, c, row, room)


@inner
def unpack_words(prepare, weights, d_of, signed, block, out):
    """Write one row's part of a tile, weights times their scale.

    The room is the end of the row, which is written over from its beginning when it was read.
    """
    room = out + WIDE - ROOM_BYTES
    prepare(block, room)
    for j in range(vec.rolled(8)):
        w, signs = weights(block, room, j)
        w = signed(w, signs)
        low, high = vec.load_i16(room + SCALES + 4 * j), vec.load_i16(room + SCALES + 4 * j + 2)
        vec.store_i16x16(out + 64 * j, vec.mul(vec.widen_i8x16(vec.low_half_i8(w)), vec.splat_i16x16(low)))
        vec.store_i16x16(out + 64 * j + 32, vec.mul(vec.widen_i8x16(vec.high_half_i8(w)), vec.splat_i16x16(high)))
    vec.store_f32(out + tiles_of_words.ROW_D, vec.first_lane(d_of(block, ONE)))


@inner
def unpack_bytes(prepare, weights, d_of, signed, block, out):
    """Write one row's part of a tile, weights 128 too large for VNNI; that becomes minima of -128 scales."""
    room = out + NARROW - ROOM_BYTES
    prepare(block, room)
    for j in range(vec.rolled(8)):
        w, signs = weights(block, room, j)
        vec.store_i8x32(out + 32 * j, vec.xor(signed(w, signs), vec.splat_i8x32(FOURS_OFFSET)))
    s = vec.load_i16x16(room + SCALES)
    vec.store_i16x16(out + tiles_of_bytes.ROW_SCALES, vec.each_twice_i16x8(vec.low_half_i16(s)))
    vec.store_i16x16(out + tiles_of_bytes.ROW_SCALES + 32, vec.each_twice_i16x8(vec.high_half_i16(s)))
    vec.store_i16x16(out + tiles_of_bytes.ROW_MINIMA, vec.mul(s, vec.splat_i16x16(FOURS_OFFSET)))
    vec.store_f32(out + tiles_of_bytes.ROW_D, vec.first_lane(d_of(block, ONE)))


unpack_grid = unpack_bytes if SUMS_FOURS else unpack_words
walk_grid = walk_of_bytes(16, 16, STORED_OF_16) if SUMS_FOURS else walk_wide_k


@inner
def store_sixteen(low, high, scale, out):
    """Write sixteen weights as f32."""
    scale = vec.splat_f32x8(scale)
    vec.store_f32x8(out, vec.fmul(low, scale))
    vec.store_f32x8(out + 32, vec.fmul(high, scale))


@inner
def dequantize_grid(prepare, weights, d_of, signed, block, out):
    """Write the 256 weights of a block as f32; the room is the end of what is written."""
    room, d = out + 1024 - ROOM_BYTES, vec.first_lane(d_of(block, ONE))
    prepare(block, room)
    for j in range(vec.rolled(8)):
        w, signs = weights(block, room, j)
        w = signed(w, signs)
        low, high = d * vec.load_i16(room + SCALES + 4 * j), d * vec.load_i16(room + SCALES + 4 * j + 2)
        store_sixteen(vec.first_bytes_f32(w), vec.second_bytes_f32(w), low, out + 128 * j)
        store_sixteen(vec.third_bytes_f32(w), vec.fourth_bytes_f32(w), high, out + 128 * j + 64)

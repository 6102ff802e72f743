"""Blocks of 256 weights that are entries of a grid: decode, prefill and embedding of the IQ types
below four bits.

A type writes what a block says into 192 bytes of room: offsets into its table, a byte of signs for
eight weights (or of what else they share), and sixteen scales. Everything after that is the same
for all: entries are gathered, their signs go to the activations, and whole numbers are multiplied
and scaled. Any bits are within a grid: offsets are masked.

A type supplies:

    prepare(block, room)           fills the room
    weights(block, room, j)        the j-th 32 weights: (magnitudes, signs), two i8x32
    d_of(block, d_y)               scale of the block times d_y, f32x8
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels import matmul as tiles_of_bytes
from engine.kernels import matmul_wide as tiles_of_words
from engine.kernels.matmul import store_scales_of_16
from engine.kernels.matmul_wide import store_scaled, tiles_signed_k
from engine.kernels.matvec import leaving, rows_in_order, rows_with_small_batch
from engine.kernels.matvec_k import UnitPhases, row_of_units
from engine.kernels.records import SUMS_K_BYTES
from engine.kernels.tiles import NARROW, WIDE
from engine.kernels.type_kernels import type_kernels
from engine.machine.level import FOURS_OFFSET, SUMS_FOURS

FOURS = 0
EIGHTS = 64
SIGNS = 128
SCALES = 160
ROOM_BYTES = 192
"""Places in the room: 64 offsets of entries of four weights, or 32 of eight; 32 bytes of signs; 16
int16 scales."""
ROOM_STEP = 256
"""From a block's room to the next one's: what was just written can be read in smaller parts only
after a while."""
RAISED_BY = 9
"""Offset added to weights of the raised kind."""
ONE = np.float32(1.0)

odd_parities = vec.constant_i8x32(
    [-128 if (k ^ k >> 1 ^ k >> 2 ^ k >> 3) & 1 else 0 for k in range(16)] * 2
)


@inner
def even_signs(fields):
    """Bytes of eight signs from those of seven: the eighth makes the number of minus signs even."""
    folded = vec.and_(vec.xor(fields, vec.shift_right(fields, 4)), vec.splat_i8x32(15))
    return vec.or_(fields, vec.lookup16(odd_parities(), folded))


@inner
def store_signs_of_words(words, room):
    """Signs of 32 weights in each int32: four times seven bits."""
    first = vec.and_(words, vec.splat_i32x8(0x7F))
    second = vec.and_(vec.shift_left_i32(words, 1), vec.splat_i32x8(0x7F00))
    third = vec.shift_left_i32(words, 2)
    last = vec.shift_left_i32(words, 3)
    third = vec.and_(third, vec.splat_i32x8(0x7F0000))
    last = vec.and_(last, vec.splat_i32x8(0x7F000000))
    vec.store_i8x32(
        room + SIGNS,
        even_signs(vec.bytes_of_i32x8(vec.or_(vec.or_(first, second), vec.or_(third, last)))),
    )


@inner
def store_scales_of_words(words, room):
    """Scales 2 s + 1 of 32 weights, s being the upper four bits of each int32."""
    odd = vec.or_(
        vec.and_(vec.shift_lanes_right(words, 27), vec.splat_i32x8(30)), vec.splat_i32x8(1)
    )
    vec.store_i32x8(room + SCALES, vec.or_(odd, vec.shift_left_i32(odd, 16)))


nibble_places = vec.constant_i16x16([1 << 9, 1 << 5] * 8)


@inner
def store_nibble_scales(at, room):
    """Scales 2 s + 1 of 16 weights each, s being the nibbles of eight bytes, the low one first."""
    twice = vec.mul_high(vec.as_i16x16(vec.byte_each_4(vec.broadcast_8_bytes(at))), nibble_places())
    vec.store_i16x16(
        room + SCALES, vec.or_(vec.and_(twice, vec.splat_i16x16(30)), vec.splat_i16x16(1))
    )


@inner
def signs_of(room, j):
    """The signs of the j-th 32 weights: 0xFF where there is a minus."""
    return vec.bits_to_bytes(vec.broadcast_4_bytes(room + SIGNS + 4 * j))


@inner
def turned(w, signs):
    """Bytes with their signs turned where there is a minus."""
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
    return vec.maddwd(
        vec.mul(vec.load_i16x16(room + SCALES), vec.splat_i16x16(-RAISED_BY)), vec.load_i16x16(sums)
    )


@inner
def one_scale(room, j):
    """One for 32 weights."""
    return vec.as_i16x16(vec.broadcast_4_bytes(room + SCALES + 4 * j))


@inner
def two_scales(room, j):
    """Two, one in each half."""
    return vec.lane_of_two(one_scale(room, j))


@inner
def clear_grid(shared, column, state):
    """A phase: no integers and no result."""
    return vec.splat_i32x8(0), vec.splat_f32x8(0.0)


@inner
def result_of(state):
    """Sum of the result's lanes."""
    return vec.sum_f32x8(state[1])


leave_grid = leaving(result_of)


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
        low = vec.load_i16(room + SCALES + 4 * j)
        high = vec.load_i16(room + SCALES + 4 * j + 2)
        store_scaled(out + 64 * j, w, low, high)
    vec.store_f32(out + tiles_of_words.ROW_D, vec.first_lane(d_of(block, ONE)))


@inner
def unpack_bytes(prepare, weights, d_of, signed, block, out):
    """Write one row's part of a tile, weights 128 too large for VNNI; that becomes minima of -128
    scales."""
    room = out + NARROW - ROOM_BYTES
    prepare(block, room)
    for j in range(vec.rolled(8)):
        w, signs = weights(block, room, j)
        vec.store_i8x32(out + 32 * j, vec.xor(signed(w, signs), vec.splat_i8x32(FOURS_OFFSET)))
    s = vec.load_i16x16(room + SCALES)
    store_scales_of_16(s, out)
    vec.store_i16x16(out + tiles_of_bytes.ROW_MINIMA, vec.mul(s, vec.splat_i16x16(FOURS_OFFSET)))
    vec.store_f32(out + tiles_of_bytes.ROW_D, vec.first_lane(d_of(block, ONE)))


unpack_grid = unpack_bytes if SUMS_FOURS else unpack_words


@inner
def store_sixteen(low, high, scale, out):
    """Write sixteen weights as f32."""
    scale = vec.splat_f32x8(scale)
    vec.store_f32x8(out, vec.fmul(low, scale))
    vec.store_f32x8(out + 32, vec.fmul(high, scale))


@inner
def dequantize_grid(prepare, weights, d_of, signed, block, out):
    """Write the 256 weights of a block as f32; the room is the end of what is written."""
    room = out + 1024 - ROOM_BYTES
    d = vec.first_lane(d_of(block, ONE))
    prepare(block, room)
    for j in range(vec.rolled(8)):
        w, signs = weights(block, room, j)
        w = signed(w, signs)
        low = d * vec.load_i16(room + SCALES + 4 * j)
        high = d * vec.load_i16(room + SCALES + 4 * j + 2)
        store_sixteen(vec.first_bytes_f32(w), vec.second_bytes_f32(w), low, out + 128 * j)
        store_sixteen(vec.third_bytes_f32(w), vec.fourth_bytes_f32(w), high, out + 128 * j + 64)


class GridKind(NamedTuple):
    """What the two kinds of types differ in.

    Attributes:
        times: (w, signs, y) -> products of 32 weights as i16x16.
        plain: (w, signs) -> the weights themselves, i8x32.
        start: (room, sums) -> i32x8 that the sum of products begins with.
    """

    times: Callable[..., Any]
    plain: Callable[..., Any]
    start: Callable[..., Any]


SIGNED = GridKind(times_signed, turned, start_at_zero)
RAISED = GridKind(times_raised, lowered, start_lowered)


def half_times(factor):
    """Make ``d_of`` of blocks that begin with a half, times a factor."""
    factor = np.float32(factor)

    @inner
    def d_of(block, d_y):
        return vec.first_f32(vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(d_y * factor)))

    return d_of


def grid_type(module, block_bytes, kind, scale_of, prepare, weights, d_of):
    """Make the four kernels of a type.

    Args:
        kind: ``SIGNED`` or ``RAISED``.
        scale_of: ``one_scale`` or ``two_scales``.
        prepare, weights, d_of: as above.
    """
    times, plain, start_of = kind

    @inner
    def prepare_next(block, room, i, n_blocks):
        prepare(block + (block_bytes if i + 1 < n_blocks else 0), room + ROOM_STEP * (~i & 1))
        return room + ROOM_STEP * (i & 1)

    @inner
    def unit(block, room, j):
        w, signs = weights(block, room, j)
        return w, signs, scale_of(room, j)

    @inner
    def start(shared, column, state):
        (_, room, i) = shared
        (_, _, _, sums) = column
        (_, acc) = state
        return start_of(room, sums + SUMS_K_BYTES * i), acc

    @inner
    def add(shared, column, state):
        ((w, signs, scale), at) = shared
        (_, q, _, _) = column
        (t, acc) = state
        return vec.add(t, vec.maddwd(times(w, signs, vec.load_i8x32(q + at)), scale)), acc

    @inner
    def fold(shared, column, state):
        (block, _, i) = shared
        (_, _, d, _) = column
        (t, acc) = state
        return t, vec.fma(d_of(block, vec.load_f32(d + 4 * i)), vec.f32_of_i32x8(t), acc)

    @inner
    def unpack_row(block, out, n_live):
        unpack_grid(prepare, weights, d_of, plain, block, out)

    @inner
    def dequantize(block, out):
        dequantize_grid(prepare, weights, d_of, plain, block, out)

    phases = UnitPhases(clear_grid, start, add, fold, leave_grid)
    one, two, four = (
        row_of_units(n, phases, prepare, prepare_next, unit, 32, block_bytes) for n in (1, 2, 4)
    )
    rows = rows_in_order(one, is_small_batch=False), rows_with_small_batch(one, two, four)
    return type_kernels(module, 256, block_bytes, dequantize, rows, unpack_row, tiles_signed_k(16))

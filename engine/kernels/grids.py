"""Types whose weights are entries of a grid: decode, prefill and embedding of the IQ types below 4
bits.

A block has 256 weights. A type decodes its block into 192 bytes of scratch: offsets into its table,
a byte of signs for each eight weights (or another value that they share), and sixteen scales. The
rest is the same for all types: entries are gathered, their signs go to the activations, and the
integer products are summed and scaled. Offsets are masked, so no bits lead outside the grid.

A type supplies:

    prepare(block, scratch)        fills the scratch
    weights(block, scratch, j)     weights 32 j to 32 j + 31: (magnitudes, signs), two i8x32
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
from engine.kernels.matvec import last_phase, rows_in_order, rows_with_small_batch, two_and_one
from engine.kernels.matvec_k import UnitPhases, row_of_units
from engine.kernels.records import SUMS_K_BYTES
from engine.kernels.tiles import NARROW, WIDE
from engine.kernels.type_kernels import type_kernels
from engine.machine.level import FOURS_OFFSET, SUMS_FOURS

FOURS = 0
EIGHTS = 64
SIGNS = 128
SCALES = 160
SCRATCH_BYTES = 192
"""Offsets in the scratch, and its size.

It holds 64 offsets of entries of four weights or 32 of eight, 32 bytes of signs and 16 int16
scales.
"""
SCRATCH_STEP = 256
"""Bytes from a block's scratch to that of the next.

Reading smaller values from what was just written as larger ones has to wait.
"""
RAISED_BY = 9
"""Offset added to weights of ``RAISED`` types."""
F32_ONE = np.float32(1.0)

odd_parities = vec.constant_i8x32(
    [-128 if (k ^ k >> 1 ^ k >> 2 ^ k >> 3) & 1 else 0 for k in range(16)] * 2
)


@inner
def even_signs(fields):
    """Return bytes of eight signs, given seven: the eighth makes the number of minus signs even."""
    folded = vec.and_(vec.xor(fields, vec.shift_right(fields, 4)), vec.splat_i8x32(15))
    return vec.or_(fields, vec.lookup16(odd_parities(), folded))


@inner
def store_signs_of_words(words, scratch):
    """Write the signs of 32 weights for each int32, which holds four times seven bits."""
    first = vec.and_(words, vec.splat_i32x8(0x7F))
    second = vec.and_(vec.shift_left_i32(words, 1), vec.splat_i32x8(0x7F00))
    third = vec.shift_left_i32(words, 2)
    last = vec.shift_left_i32(words, 3)
    third = vec.and_(third, vec.splat_i32x8(0x7F0000))
    last = vec.and_(last, vec.splat_i32x8(0x7F000000))
    vec.store_i8x32(
        scratch + SIGNS,
        even_signs(vec.bytes_of_i32x8(vec.or_(vec.or_(first, second), vec.or_(third, last)))),
    )


@inner
def store_scales_of_words(words, scratch):
    """Write the scales 2 s + 1 of 32 weights each; s is the upper four bits of each int32."""
    odd = vec.or_(
        vec.and_(vec.shift_lanes_right(words, 27), vec.splat_i32x8(30)), vec.splat_i32x8(1)
    )
    vec.store_i32x8(scratch + SCALES, vec.or_(odd, vec.shift_left_i32(odd, 16)))


nibble_places = vec.constant_i16x16([1 << 9, 1 << 5] * 8)


@inner
def store_nibble_scales(address, scratch):
    """Write the scales 2 s + 1 of 16 weights each.

    s are the nibbles of eight bytes, the low one first.
    """
    twice = vec.mul_high(
        vec.as_i16x16(vec.byte_each_4(vec.broadcast_8_bytes(address))), nibble_places()
    )
    vec.store_i16x16(
        scratch + SCALES, vec.or_(vec.and_(twice, vec.splat_i16x16(30)), vec.splat_i16x16(1))
    )


@inner
def signs_of(scratch, j):
    """Return the signs of weights 32 j to 32 j + 31: 0xFF for a minus."""
    return vec.bits_to_bytes(vec.broadcast_4_bytes(scratch + SIGNS + 4 * j))


@inner
def with_signs(w, signs):
    """Return bytes, negated if their sign is a minus."""
    return vec.sub(vec.xor(w, signs), signs)


@inner
def times_signed(w, signs, y):
    """Return products of magnitudes; their signs go to the activations."""
    return vec.maddubs(w, with_signs(y, signs))


@inner
def start_at_zero(scratch, sums):
    """Return zero, to begin a sum of products."""
    return vec.splat_i32x8(0)


@inner
def raised_of(scratch, j):
    """Return the offsets of weights 32 j to 32 j + 31: one byte for each eight."""
    return vec.byte_each_8(vec.broadcast_4_bytes(scratch + SIGNS + 4 * j))


@inner
def times_raised(w, signs, y):
    """Return products of weights that are ``RAISED_BY`` too large."""
    return vec.maddubs(w, y)


@inner
def without_offset(w, signs):
    """Return weights without their offset ``RAISED_BY``."""
    return vec.sub(w, vec.splat_i8x32(RAISED_BY))


@inner
def start_with_offset(scratch, sums):
    """Return the negative offset of such weights times all activations, to begin a sum."""
    return vec.maddwd(
        vec.mul(vec.load_i16x16(scratch + SCALES), vec.splat_i16x16(-RAISED_BY)),
        vec.load_i16x16(sums),
    )


@inner
def one_scale(scratch, j):
    """Return the scale of 32 weights."""
    return vec.as_i16x16(vec.broadcast_4_bytes(scratch + SCALES + 4 * j))


@inner
def two_scales(scratch, j):
    """Return two scales of 16 weights, one in each half."""
    return vec.lane_of_two(one_scale(scratch, j))


@inner
def clear_grid(shared, token, state):
    """Return a cleared state: no integers and no result."""
    return vec.splat_i32x8(0), vec.splat_f32x8(0.0)


@inner
def result_of(state):
    """Return the sum of the result's lanes."""
    return vec.sum_f32x8(state[1])


finish_grid = last_phase(result_of)


@inner
def unpack_words(prepare, weights, d_of, signed, block, out):
    """Write one row's part of a tile: int16 weights times their scale.

    The scratch is the end of the row. It is overwritten only after it was read.
    """
    scratch = out + WIDE - SCRATCH_BYTES
    prepare(block, scratch)
    for j in range(vec.rolled(8)):
        w, signs = weights(block, scratch, j)
        w = signed(w, signs)
        low = vec.load_i16(scratch + SCALES + 4 * j)
        high = vec.load_i16(scratch + SCALES + 4 * j + 2)
        store_scaled(out + 64 * j, w, low, high)
    vec.store_f32(out + tiles_of_words.ROW_D, vec.first_lane(d_of(block, F32_ONE)))


@inner
def unpack_bytes(prepare, weights, d_of, signed, block, out):
    """Write one row's part of a tile: int8 weights, 128 too large for VNNI.

    The offset becomes minima of -128 scales.
    """
    scratch = out + NARROW - SCRATCH_BYTES
    prepare(block, scratch)
    for j in range(vec.rolled(8)):
        w, signs = weights(block, scratch, j)
        vec.store_i8x32(out + 32 * j, vec.xor(signed(w, signs), vec.splat_i8x32(FOURS_OFFSET)))
    s = vec.load_i16x16(scratch + SCALES)
    store_scales_of_16(s, out)
    vec.store_i16x16(out + tiles_of_bytes.ROW_MINIMA, vec.mul(s, vec.splat_i16x16(FOURS_OFFSET)))
    vec.store_f32(out + tiles_of_bytes.ROW_D, vec.first_lane(d_of(block, F32_ONE)))


unpack_grid = unpack_bytes if SUMS_FOURS else unpack_words


@inner
def store_sixteen(low, high, scale, out):
    """Write sixteen weights as f32."""
    scale = vec.splat_f32x8(scale)
    vec.store_f32x8(out, vec.fmul(low, scale))
    vec.store_f32x8(out + 32, vec.fmul(high, scale))


@inner
def dequantize_grid(prepare, weights, d_of, signed, block, out):
    """Write the 256 weights of a block as f32; the scratch is the end of the output."""
    scratch = out + 1024 - SCRATCH_BYTES
    d = vec.first_lane(d_of(block, F32_ONE))
    prepare(block, scratch)
    for j in range(vec.rolled(8)):
        w, signs = weights(block, scratch, j)
        w = signed(w, signs)
        low = d * vec.load_i16(scratch + SCALES + 4 * j)
        high = d * vec.load_i16(scratch + SCALES + 4 * j + 2)
        store_sixteen(vec.first_bytes_f32(w), vec.second_bytes_f32(w), low, out + 128 * j)
        store_sixteen(vec.third_bytes_f32(w), vec.fourth_bytes_f32(w), high, out + 128 * j + 64)


class GridKind(NamedTuple):
    """Differences between types with signs and types with an offset.

    Attributes:
        times: (w, signs, y) -> products of 32 weights as i16x16.
        plain: (w, signs) -> the weights themselves, i8x32.
        start: (scratch, sums) -> i32x8 that the sum of products begins with.
    """

    times: Callable[..., Any]
    plain: Callable[..., Any]
    start: Callable[..., Any]


SIGNED = GridKind(times_signed, with_signs, start_at_zero)
RAISED = GridKind(times_raised, without_offset, start_with_offset)


def half_times(factor):
    """Make ``d_of`` for blocks that begin with an f16, times a factor."""
    factor = np.float32(factor)

    @inner
    def d_of(block, d_y):
        return vec.first_f32(vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(d_y * factor)))

    return d_of


def grid_type(module, block_bytes, grid_kind, scale_of, prepare, weights, d_of):
    """Make the four kernels of a type.

    Args:
        grid_kind: ``SIGNED`` or ``RAISED``.
        scale_of: ``one_scale`` or ``two_scales``.
        prepare, weights, d_of: As in the module's docstring.
    """
    times, plain, start_of = grid_kind

    @inner
    def prepare_next(block, scratch, i, n_blocks):
        prepare(block + (block_bytes if i + 1 < n_blocks else 0), scratch + SCRATCH_STEP * (~i & 1))
        return scratch + SCRATCH_STEP * (i & 1)

    @inner
    def unit(block, scratch, j):
        w, signs = weights(block, scratch, j)
        return w, signs, scale_of(scratch, j)

    @inner
    def start(shared, token, state):
        (_, scratch, i) = shared
        (_, _, _, sums) = token
        (_, acc) = state
        return start_of(scratch, sums + SUMS_K_BYTES * i), acc

    @inner
    def add(shared, token, state):
        ((w, signs, scale), offset) = shared
        (_, q, _, _) = token
        (t, acc) = state
        return vec.add(t, vec.maddwd(times(w, signs, vec.load_i8x32(q + offset)), scale)), acc

    @inner
    def fold(shared, token, state):
        (block, _, i) = shared
        (_, _, d, _) = token
        (t, acc) = state
        return t, vec.fma(d_of(block, vec.load_f32(d + 4 * i)), vec.f32_of_i32x8(t), acc)

    @inner
    def unpack_row(block, out, n_live):
        unpack_grid(prepare, weights, d_of, plain, block, out)

    @inner
    def dequantize(block, out):
        dequantize_grid(prepare, weights, d_of, plain, block, out)

    phases = UnitPhases(clear_grid, start, add, fold, finish_grid)
    one_token, two_tokens, four_tokens = (
        row_of_units(n, phases, prepare, prepare_next, unit, 32, block_bytes) for n in (1, 2, 4)
    )
    rows = (
        rows_in_order(one_token, is_small_batch=False),
        rows_with_small_batch(
            one_token, two_tokens, two_and_one(one_token, two_tokens), four_tokens
        ),
    )
    return type_kernels(module, 256, block_bytes, dequantize, rows, unpack_row, tiles_signed_k(16))

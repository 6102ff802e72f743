"""Types with blocks of 32 weights whose four lower bits are in sixteen bytes: weights 0 to 15 in
the low nibbles, 16 to 31 in the high ones.

Types differ in the meaning of the bits (``BlockWeights``) and in the scaling of a block's integers:
d * (weight - offset) in ``offset_type``, d * weight + m in ``minimum_type``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels.block_lanes import (
    LaneWeights,
    first_f16,
    rows_in_block_lanes,
    second_f16,
)
from engine.kernels.matmul_32 import (
    ROW_D,
    ROW_M,
    WITH_MINIMUM,
    sum_32_u4,
    sum_32_u5,
    tiles_32,
    with_offset,
)
from engine.kernels.matvec_32 import (
    eight_blocks,
    eight_groups,
    fold_i16,
    fold_i16_wide_sums,
    one_block_i16,
    row_kernels_32,
)
from engine.kernels.type_kernels import type_kernels
from engine.machine.level import BLOCK_LANES, HAS_ARM64


class BlockWeights(NamedTuple):
    """Functions that read the integers of a block.

    Attributes:
        load_two_blocks: (block, other) -> the first sixteen weights of two blocks as bytes, one
            block in each half, and the last sixteen.
        load_block: (block) -> the 32 weights of a block as bytes.
        low_weight, high_weight: (block, k) -> weight k, or k + 16, as a number.
        low_lanes, high_lanes: As ``low`` and ``high`` in ``LaneWeights``.
        qs: Offset of the nibbles in a block.
        largest: Largest weight.
    """

    load_two_blocks: Callable[..., Any]
    load_block: Callable[..., Any]
    low_weight: Callable[..., Any]
    high_weight: Callable[..., Any]
    low_lanes: tuple[Callable[..., Any], ...]
    high_lanes: tuple[Callable[..., Any], ...]
    qs: int
    largest: int


@inner
def load_nibbles_of_two(qs, other_qs):
    """Return the low and the high nibbles at two addresses."""
    nibbles = vec.load_two_i8x16(qs, other_qs)
    return vec.and_(nibbles, vec.splat_i8x32(15)), vec.high_nibbles(nibbles)


@inner
def load_nibbles(qs):
    """Return the 32 nibbles at an address in order."""
    nibbles = vec.broadcast_16_bytes(qs)
    return vec.and_(
        vec.join_i8(vec.low_half_i8(nibbles), vec.high_half_i8(vec.shift_right(nibbles, 4))),
        vec.splat_i8x32(15),
    )


@inner
def low_nibbles(w, heads):
    """Return the lower four bits of each byte."""
    return vec.and_(w, vec.splat_like(w, 15))


@inner
def high_nibbles(w, heads):
    """Return the upper four bits of each byte."""
    return vec.and_(vec.shift_right(w, 4), vec.splat_like(w, 15))


def mapped(nibbles, entries):
    """Make the function that maps nibbles of blocks in lanes by a table."""

    @inner
    def mapped_nibbles(w, heads):
        return entries(nibbles(w, heads))

    return mapped_nibbles


def with_bits(nibbles, offset, k):
    """Make the function that adds a fifth bit to nibbles of blocks in lanes.

    Args:
        offset: Offset in a block of the byte with the lowest bits of all.
        k: Number of the four weights in a block.
    """
    head = (offset + k // 2) // 4
    add_bits = vec.with_fifth_bits((offset + k // 2) % 4, 4 * (k % 2))

    @inner
    def nibbles_and_bits(w, heads):
        return add_bits(nibbles(w, heads), heads[head])

    return nibbles_and_bits


def nibbles_at(qs):
    """Make weights that are the nibbles from byte ``qs`` of a block on."""

    @inner
    def load_two_blocks(block, second):
        return load_nibbles_of_two(block + qs, second + qs)

    @inner
    def load_block(block):
        return load_nibbles(block + qs)

    @inner
    def low_weight(block, k):
        return vec.load_u8(block + qs + k) & 15

    @inner
    def high_weight(block, k):
        return vec.load_u8(block + qs + k) >> 4

    return BlockWeights(
        load_two_blocks,
        load_block,
        low_weight,
        high_weight,
        (low_nibbles,) * 4,
        (high_nibbles,) * 4,
        qs,
        largest=15,
    )


def nibbles_and_bits_at(qs, qh):
    """Make weights that are nibbles and a fifth bit, bit l of the four bytes from ``qh`` on for
    weight l."""

    @inner
    def load_two_blocks(block, second):
        (low, high) = load_nibbles_of_two(block + qs, second + qs)
        bits = vec.broadcast_two_4_bytes(block + qh, second + qh)
        return vec.or_(low, vec.bits_as_16_low(bits)), vec.or_(high, vec.bits_as_16_high(bits))

    @inner
    def load_block(block):
        return vec.or_(load_nibbles(block + qs), vec.bits_as_16(vec.broadcast_4_bytes(block + qh)))

    @inner
    def low_weight(block, k):
        return np.int32(vec.load_u8(block + qs + k) & 15 | (vec.load_u32(block + qh) >> k & 1) << 4)

    @inner
    def high_weight(block, k):
        return np.int32(
            vec.load_u8(block + qs + k) >> 4 | (vec.load_u32(block + qh) >> k + 16 & 1) << 4
        )

    return BlockWeights(
        load_two_blocks,
        load_block,
        low_weight,
        high_weight,
        tuple(with_bits(low_nibbles, qh, k) for k in range(4)),
        tuple(with_bits(high_nibbles, qh, k) for k in range(4, 8)),
        qs,
        largest=31,
    )


def entries_at(qs, values):
    """Make weights that are entries of a table of sixteen, by the nibbles from byte ``qs`` on."""
    table = vec.constant_i8x32([(value + 128) % 256 - 128 for value in values] * 2)
    entries = vec.table_of_16(values)

    @inner
    def load_two_blocks(block, second):
        low, high = load_nibbles_of_two(block + qs, second + qs)
        return vec.lookup16(table(), low), vec.lookup16(table(), high)

    @inner
    def load_block(block):
        return vec.lookup16(table(), load_nibbles(block + qs))

    @inner
    def low_weight(block, k):
        return values[vec.load_u8(block + qs + k) & 15]

    @inner
    def high_weight(block, k):
        return values[vec.load_u8(block + qs + k) >> 4]

    return BlockWeights(
        load_two_blocks,
        load_block,
        low_weight,
        high_weight,
        (mapped(low_nibbles, entries),) * 4,
        (mapped(high_nibbles, entries),) * 4,
        qs,
        largest=max(values),
    )


def product_functions(weights, block_bytes):
    """Make the functions for integer products of weights without a sign.

    Returns:
        (multiply_two_blocks, multiply_eight_blocks, sum_block): Products of two blocks as in
        ``eight_blocks``, of eight blocks, and of a tile's block with tokens as in ``tiles_32``.
    """
    load_two_blocks = weights.load_two_blocks
    if weights.largest < 16:
        fold, sum_block = fold_i16, sum_32_u4
    else:
        fold, sum_block = fold_i16_wide_sums, sum_32_u5
    in_groups = HAS_ARM64 and weights.largest < 16

    @inner
    def multiply_two_blocks(block, second, y_low, y_high):
        low, high = load_two_blocks(block, second)
        return vec.add(vec.maddubs(low, y_low), vec.maddubs(high, y_high))

    @inner
    def multiply_eight_blocks(block, y):
        if in_groups:
            return eight_groups(load_two_blocks, vec.sums_of_32_u4, block_bytes, block, y)
        return eight_blocks(multiply_two_blocks, fold, block_bytes, block, y)

    return multiply_two_blocks, multiply_eight_blocks, sum_block


def rows_of_nibbles(weights, dot8, dot1, block_bytes, offset, scale, minimum=None):
    """Make ``matvec`` and ``small_batch``.

    Args:
        dot8, dot1: As in ``row_kernels_32``.
        offset, scale, minimum: As in ``LaneWeights``.
    """
    if not BLOCK_LANES:
        return row_kernels_32(dot8, dot1, block_bytes)
    lanes = LaneWeights(
        weights.qs,
        16,
        weights.low_lanes,
        weights.high_lanes,
        scale,
        minimum,
        offset,
        weights.largest,
    )
    return row_kernels_32(
        dot8, dot1, block_bytes, long_rows=rows_in_block_lanes(lanes, block_bytes)
    )


def negative_multiplier(offset):
    """Make the function that multiplies eight sums of activations at an address by -offset."""
    shift = offset.bit_length() - 1

    @inner
    def shifted(sums):
        return vec.sub(vec.splat_i32x8(0), vec.shift_lanes_left(vec.load_i32x8(sums), shift))

    @inner
    def multiplied(sums):
        return vec.maddwd(vec.pairs_i16(-offset, 0), vec.as_i16x16(vec.load_i8x32(sums)))

    return shifted if offset == 1 << shift else multiplied


def offset_type(
    module,
    block_bytes,
    weights,
    offset,
    scale=vec.load_f16,
    scales=vec.load_f16x8_strided,
    lane_scales=first_f16,
):
    """Make the four kernels of a type with d * (weight - offset).

    Args:
        scale, scales: (block) -> d of a block, and (block, stride) -> d of eight blocks.
        lane_scales: As ``scale`` in ``LaneWeights``.
    """
    load_block = weights.load_block
    low_weight = weights.low_weight
    high_weight = weights.high_weight
    (multiply_two_blocks, multiply_eight_blocks, sum_block) = product_functions(
        weights, block_bytes
    )
    offset_sums = negative_multiplier(offset)

    @inner
    def dot8(block, y, d_y, sums, acc):
        t = vec.add(multiply_eight_blocks(block, y), offset_sums(sums))
        return vec.fma(
            vec.fmul(scales(block, block_bytes), vec.load_f32x8(d_y)), vec.f32_of_i32x8(t), acc
        )

    @inner
    def dot1(block, y, d_y, sums):
        t = one_block_i16(multiply_two_blocks, block, y) - offset * vec.load_i32(sums)
        return scale(block) * vec.load_f32(d_y) * np.float32(t)

    @inner
    def unpack_row(block, out, n_live):
        for b in range(n_live // 32):
            address = block + block_bytes * vec.rolled(b)
            vec.store_i8x32(out + 32 * b, load_block(address))
            vec.store_f32(out + ROW_D + 4 * b, scale(address))

    @inner
    def dequantize(block, out):
        d = scale(block)
        for k in range(16):
            vec.store_f32(out + 4 * k, d * (low_weight(block, k) - offset))
            vec.store_f32(out + 4 * (k + 16), d * (high_weight(block, k) - offset))

    rows = rows_of_nibbles(weights, dot8, dot1, block_bytes, offset, lane_scales)
    tiles = tiles_32(sum_block, with_offset(offset))
    return type_kernels(module, 32, block_bytes, dequantize, rows, unpack_row, tiles)


def minimum_type(module, block_bytes, weights):
    """Make the four kernels of a type with d * weight + m; a block begins with f16 d and m."""
    load_block = weights.load_block
    low_weight = weights.low_weight
    high_weight = weights.high_weight
    multiply_two_blocks, multiply_eight_blocks, sum_block = product_functions(weights, block_bytes)

    @inner
    def dot8(block, y, d_y, sums, acc):
        d_y8 = vec.load_f32x8(d_y)
        d = vec.fmul(vec.load_f16x8_strided(block, block_bytes), d_y8)
        m = vec.fmul(vec.load_f16x8_strided(block + 2, block_bytes), d_y8)
        products = vec.f32_of_i32x8(multiply_eight_blocks(block, y))
        return vec.fma(m, vec.f32_of_i32x8(vec.load_i32x8(sums)), vec.fma(d, products, acc))

    @inner
    def dot1(block, y, d_y, sums):
        product = np.float32(one_block_i16(multiply_two_blocks, block, y))
        total = np.float32(vec.load_i32(sums))
        return (vec.load_f16(block) * product + vec.load_f16(block + 2) * total) * vec.load_f32(d_y)

    @inner
    def unpack_row(block, out, n_live):
        for b in range(n_live // 32):
            address = block + block_bytes * vec.rolled(b)
            vec.store_i8x32(out + 32 * b, load_block(address))
            vec.store_f32(out + ROW_D + 4 * b, vec.load_f16(address))
            vec.store_f32(out + ROW_M + 4 * b, vec.load_f16(address + 2))

    @inner
    def dequantize(block, out):
        d = vec.load_f16(block)
        m = vec.load_f16(block + 2)
        for k in range(16):
            vec.store_f32(out + 4 * k, d * low_weight(block, k) + m)
            vec.store_f32(out + 4 * (k + 16), d * high_weight(block, k) + m)

    rows = rows_of_nibbles(weights, dot8, dot1, block_bytes, 0, first_f16, second_f16)
    tiles = tiles_32(sum_block, WITH_MINIMUM)
    return type_kernels(module, 32, block_bytes, dequantize, rows, unpack_row, tiles)

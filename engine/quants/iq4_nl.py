"""IQ4_NL: 32 weights of 4 bits with one scale; a weight is an index into a fixed table.

    d   f16       scale
    qs  16 bytes  weights 0..15 in the low nibbles, 16..31 in the high ones
                  2 + 16 = 18

A weight is ``d * VALUES[q]``. Layout and table: ggml-common.h, block_iq4_nl and kvalues_iq4nl.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels.block_lanes import RAISED, first_f16
from engine.kernels.matmul_signed import ROW_D, TILES_SIGNED, store_signed
from engine.kernels.matvec_32 import (
    eight_blocks,
    eight_groups,
    fold_i32,
    one_block_i32,
)
from engine.kernels.nibbles import entries_at, rows_of_nibbles
from engine.kernels.type_kernels import type_kernels
from engine.machine.level import HAS_ARM64

BLOCK_BYTES = 18
VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

load_two_blocks, load_block, low_weight, high_weight, *_ = entries_at(2, VALUES)


@inner
def pair(block, second, y_low, y_high):
    """Return the products of two blocks as i32x8, one block in each half.

    The weights' signs move to the activations.
    """
    (low, high) = load_two_blocks(block, second)
    ones = vec.splat_i16x16(1)
    return vec.add(
        vec.maddwd(vec.maddubs(vec.abs_i8(low), vec.with_sign_of(y_low, low)), ones),
        vec.maddwd(vec.maddubs(vec.abs_i8(high), vec.with_sign_of(y_high, high)), ones),
    )


@inner
def product_of_eight(block, y):
    """Return the integer products of eight blocks."""
    if HAS_ARM64:
        return eight_groups(load_two_blocks, vec.sums_of_32_i8, BLOCK_BYTES, block, y)
    return eight_blocks(pair, fold_i32, BLOCK_BYTES, block, y)


@inner
def dot8(block, y, d_y, sums, acc):
    """Add the products of eight blocks with 256 activations."""
    t = product_of_eight(block, y)
    return vec.fma(
        vec.fmul(vec.load_f16x8_strided(block, BLOCK_BYTES), vec.load_f32x8(d_y)),
        vec.f32_of_i32x8(t),
        acc,
    )


@inner
def dot1(block, y, d_y, sums):
    """Return one block's products with 32 activations, scaled."""
    return vec.load_f16(block) * vec.load_f32(d_y) * np.float32(one_block_i32(pair, block, y))


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile."""
    for b in range(n_live // 32):
        address = block + BLOCK_BYTES * vec.rolled(b)
        store_signed(out, b, load_block(address))
        vec.store_f32(out + ROW_D + 4 * b, vec.load_f16(address))


@inner
def dequantize(block, out):
    """Write the 32 weights of a block as f32."""
    d = vec.load_f16(block)
    for k in range(16):
        vec.store_f32(out + 4 * k, d * low_weight(block, k))
        vec.store_f32(out + 4 * (k + 16), d * high_weight(block, k))


raised_weights = entries_at(2, tuple(value + RAISED for value in VALUES))
rows = rows_of_nibbles(raised_weights, dot8, dot1, BLOCK_BYTES, RAISED, first_f16)
embed, matvec, small_batch, matmul = type_kernels(
    __name__,
    32,
    BLOCK_BYTES,
    dequantize,
    rows,
    unpack_row,
    TILES_SIGNED,
)

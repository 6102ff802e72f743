"""Q8_0: 32 weights of 8 bits with one scale.

    d   f16       scale
    qs  32 bytes  int8
                  2 + 32 = 34

A weight is ``d * q``. Layout: ggml-common.h, block_q8_0.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels.block_lanes import RAISED, LaneWeights, first_f16, rows_in_block_lanes
from engine.kernels.matmul_signed import ROW_D, TILES_SIGNED, store_signed
from engine.kernels.matvec_32 import fold_i32, row_kernels_32
from engine.kernels.type_kernels import type_kernels
from engine.machine.level import BLOCK_LANES, HAS_ARM64

BLOCK_BYTES = 34


@inner
def products(block, y):
    """Return the products of one block as i32x8; the weights' signs move to the activations."""
    w = vec.load_i8x32(block + 2)
    if HAS_ARM64:
        return vec.maddwd(vec.maddubs(w, vec.load_i8x32(y)), vec.splat_i16x16(1))
    return vec.maddwd(
        vec.maddubs(vec.abs_i8(w), vec.with_sign_of(vec.load_i8x32(y), w)), vec.splat_i16x16(1)
    )


@inner
def pair(block, y):
    """Return the products of this block and of the fourth block after it, one in each half."""
    return vec.add_halves(products(block, y), products(block + 4 * BLOCK_BYTES, y + 128))


@inner
def dot8(block, y, d_y, sums, acc):
    """Add the products of eight blocks with 256 activations."""
    t = fold_i32(
        pair(block, y),
        pair(block + BLOCK_BYTES, y + 32),
        pair(block + 2 * BLOCK_BYTES, y + 64),
        pair(block + 3 * BLOCK_BYTES, y + 96),
    )
    return vec.fma(
        vec.fmul(vec.load_f16x8_strided(block, BLOCK_BYTES), vec.load_f32x8(d_y)),
        vec.f32_of_i32x8(t),
        acc,
    )


@inner
def sums_of_four_blocks(block, y):
    """Return the sums of the products of four blocks, a lane each."""
    second = block + BLOCK_BYTES
    third = block + 2 * BLOCK_BYTES
    fourth = block + 3 * BLOCK_BYTES
    return vec.sums_of_32_i8(
        vec.load_i8x32(block + 2), vec.load_i8x32(second + 2), vec.load_i8x32(third + 2),
        vec.load_i8x32(fourth + 2),
        vec.load_i8x32(y), vec.load_i8x32(y + 32), vec.load_i8x32(y + 64), vec.load_i8x32(y + 96),
    )  # fmt: skip


@inner
def dot8_by_groups(block, y, d_y, sums, acc):
    """Compute ``dot8`` with a lane for each block."""
    t = vec.join_i32(
        sums_of_four_blocks(block, y), sums_of_four_blocks(block + 4 * BLOCK_BYTES, y + 128)
    )
    return vec.fma(
        vec.fmul(vec.load_f16x8_strided(block, BLOCK_BYTES), vec.load_f32x8(d_y)),
        vec.f32_of_i32x8(t),
        acc,
    )


@inner
def dot1(block, y, d_y, sums):
    """Return one block's products with 32 activations, scaled."""
    return vec.load_f16(block) * vec.load_f32(d_y) * np.float32(vec.sum_i32x8(products(block, y)))


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile."""
    for b in range(n_live // 32):
        address = block + BLOCK_BYTES * vec.rolled(b)
        store_signed(out, b, vec.load_i8x32(address + 2))
        vec.store_f32(out + ROW_D + 4 * b, vec.load_f16(address))


@inner
def dequantize(block, out):
    """Write the 32 weights of a block as f32."""
    d = vec.load_f16(block)
    for k in range(32):
        vec.store_f32(out + 4 * k, d * vec.load_i8(block + 2 + k))


@inner
def raised(w, heads):
    """Return weights in lanes, raised by ``RAISED``."""
    return vec.xor(w, vec.splat_like(w, RAISED))


if BLOCK_LANES:
    lanes = LaneWeights(2, 32, (raised,) * 4, (raised,) * 4, first_f16, None, RAISED, 127 + RAISED)
    rows = row_kernels_32(
        dot8, dot1, BLOCK_BYTES, long_rows=rows_in_block_lanes(lanes, BLOCK_BYTES)
    )
else:
    rows = row_kernels_32(dot8_by_groups if HAS_ARM64 else dot8, dot1, BLOCK_BYTES)
embed, matvec, small_batch, matmul = type_kernels(
    __name__, 32, BLOCK_BYTES, dequantize, rows, unpack_row, TILES_SIGNED
)

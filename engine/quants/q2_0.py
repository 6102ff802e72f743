"""Q2_0: 64 weights of two bits with one scale.

    d   f16       scale
    qs  16 bytes  weight j is bits 2 (j mod 4) and 2 (j mod 4) + 1 of byte j div 4
                  2 + 16 = 18

A weight is ``d * (q - 1)``. Layout: ggml-common.h, block_q2_0.

Decode multiplies pairs of bits by activations in the same order (``buffers.PLANES_4``): pair k of
32 bytes meets every fourth activation of two blocks, and eight bytes of a register are 32 weights.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matmul_32 import ROW_D, sum_32_u4, tiles_32, with_offset
from engine.kernels.matvec_32 import row_kernels_32
from engine.kernels.type_kernels import type_kernels

BLOCK_BYTES = 18


@inner
def plane(qs, y, k):
    """Return the products of pairs k of bits of 32 bytes as i16x16."""
    return vec.maddubs(
        vec.and_(vec.shift_right(qs, 2 * k), vec.splat_i8x32(3)), vec.load_i8x32(y + 32 * k)
    )


@inner
def pair(block, second, y):
    """Return the products of two blocks as i32x8, one block in each half.

    Two lanes are those of the first 32 weights, two those of the last 32.
    """
    qs = vec.load_two_i8x16(block + 2, second + 2)
    products = vec.add(
        vec.add(plane(qs, y, 0), plane(qs, y, 1)), vec.add(plane(qs, y, 2), plane(qs, y, 3))
    )
    return vec.maddwd(products, vec.splat_i16x16(1))


@inner
def dot8(block, y, d_y, sums, acc):
    """Add the products of four blocks with 256 activations."""
    second = block + BLOCK_BYTES
    third = block + 2 * BLOCK_BYTES
    fourth = block + 3 * BLOCK_BYTES
    t = vec.sub(
        vec.fold_neighbours(pair(block, third, y), pair(second, fourth, y + 128)),
        vec.load_i32x8(sums),
    )
    d = vec.halves_of_four(block, second, third, fourth)
    return vec.fma(vec.fmul(d, vec.load_f32x8(d_y)), vec.f32_of_i32x8(t), acc)


@inner
def weight(block, k):
    """Return weight k of a block, one too large."""
    return (vec.load_u8(block + 2 + (k >> 2)) >> (2 * (k & 3))) & 3


@inner
def dot1(block, y, d_y, sums):
    """Return one block's products with 64 activations in order, scaled."""
    total = np.float32(0.0)
    for g in range(2):
        t = -vec.load_i32(sums + 4 * g)
        for k in range(vec.rolled(32 * g), 32 * g + 32):
            t += weight(block, k) * vec.load_i8(y + k)
        total += vec.load_f32(d_y + 4 * g) * np.float32(t)
    return vec.load_f16(block) * total


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile."""
    for k in range(vec.rolled(n_live)):
        vec.store_i8(out + k, weight(block + BLOCK_BYTES * (k >> 6), k & 63))
    for g in range(n_live // 32):
        vec.store_f32(out + ROW_D + 4 * g, vec.load_f16(block + BLOCK_BYTES * (vec.rolled(g) >> 1)))


@inner
def dequantize(block, out):
    """Write the 64 weights of a block as f32."""
    d = vec.load_f16(block)
    for k in range(64):
        vec.store_f32(out + 4 * k, d * (weight(block, k) - 1))


rows = row_kernels_32(dot8, dot1, BLOCK_BYTES, block_size=64)
tiles = tiles_32(sum_32_u4, with_offset(1))
embed, matvec, small_batch, matmul = type_kernels(
    __name__, 64, BLOCK_BYTES, dequantize, rows, unpack_row, tiles
)

"""Q1_0: 128 weights of one bit with one scale.

    d   f16       scale
    qs  16 bytes  weight j is bit j mod 8 of byte j div 8
                  2 + 16 = 18

A weight is d where its bit is set, else -d. Layout: ggml-common.h, block_q1_0.

Decode multiplies the bits of two blocks by activations in the same order (``buffers.PLANES_8``):
bit k of 32 bytes meets every eighth activation from activation k on, and four bytes of a register
are 32 weights.
"""

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matmul_32 import ROW_D, sum_32_u4, tiles_32, with_offset
from engine.kernels.matvec_32 import row_kernels_32
from engine.kernels.type_kernels import type_kernels

BLOCK_BYTES = 18


@inner
def plane(bits, y, k):
    """Return the products of bits k of 32 bytes as i16x16."""
    return vec.maddubs(
        vec.and_(vec.shift_right(bits, k), vec.splat_i8x32(1)), vec.load_i8x32(y + 32 * k)
    )


@inner
def dot8(block, y, d_y, sums, acc):
    """Add the products of two blocks with 256 activations: twice the sum where the bit is set,
    minus the sum of all."""
    bits = vec.load_two_i8x16(block + 2, block + BLOCK_BYTES + 2)
    low = vec.add(
        vec.add(plane(bits, y, 0), plane(bits, y, 1)), vec.add(plane(bits, y, 2), plane(bits, y, 3))
    )
    high = vec.add(
        vec.add(plane(bits, y, 4), plane(bits, y, 5)), vec.add(plane(bits, y, 6), plane(bits, y, 7))
    )
    t = vec.sub(vec.maddwd(vec.add(low, high), vec.splat_i16x16(2)), vec.load_i32x8(sums))
    d = vec.halves_of_two(block, block + BLOCK_BYTES)
    return vec.fma(vec.fmul(d, vec.load_f32x8(d_y)), vec.f32_of_i32x8(t), acc)


@inner
def weights(block, g):
    """Return weights 32 g to 32 g + 31 of a block as bytes: 2 or 0, one too large."""
    return vec.and_(vec.bits_to_bytes(vec.broadcast_4_bytes(block + 2 + 4 * g)), vec.splat_i8x32(2))


@inner
def dot1(block, y, d_y, sums):
    """Return one block's products with 128 activations in order, scaled."""
    total = np.float32(0.0)
    for g in range(vec.rolled(4)):
        products = vec.maddwd(
            vec.maddubs(weights(block, g), vec.load_i8x32(y + 32 * g)), vec.splat_i16x16(1)
        )
        total += vec.load_f32(d_y + 4 * g) * np.float32(
            vec.sum_i32x8(products) - vec.load_i32(sums + 4 * g)
        )
    return vec.load_f16(block) * total


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile."""
    for g in range(n_live // 32):
        address = block + BLOCK_BYTES * (vec.rolled(g) >> 2)
        vec.store_i8x32(out + 32 * g, weights(address, g & 3))
        vec.store_f32(out + ROW_D + 4 * g, vec.load_f16(address))


@inner
def dequantize(block, out):
    """Write the 128 weights of a block as f32."""
    d = vec.load_f16(block)
    for k in range(128):
        vec.store_f32(out + 4 * k, d if vec.load_u8(block + 2 + (k >> 3)) >> (k & 7) & 1 else -d)


rows = row_kernels_32(dot8, dot1, BLOCK_BYTES, block_size=128)
tiles = tiles_32(sum_32_u4, with_offset(1))
embed, matvec, small_batch, matmul = type_kernels(
    __name__, 128, BLOCK_BYTES, dequantize, rows, unpack_row, tiles
)

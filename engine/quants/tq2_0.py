"""TQ2_0: 256 weights of three values in two bits each, with one scale.

    qs  64 bytes  of each half of the block (128 weights) 32 bytes: weights l, l+32, l+64, l+96 in bits 0-1, 2-3, 4-5,
                  6-7
    d   f16       scale
                  64 + 2 = 66

A weight is ``d * (q - 1)``. Layout: ggml-common.h, block_tq2_0.
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.embed import embed_rows
from engine.kernels.matmul import finish_32
from engine.kernels.matvec_k import few_k, matvec_k
from engine.kernels.ternary import finish_row, scaled_weights, walk
from engine.kernels.tiles import NARROW, matmul_tiles

BLOCK_BYTES = 66
D = 64


@inner
def half(block, n):
    """Weights of one half of a block as bytes, one too large: four registers of 32."""
    qs, mask = vec.load_i8x32(block + 32 * n), vec.splat_i8x32(3)
    return (
        vec.and_(qs, mask),
        vec.and_(vec.shift_right(qs, 2), mask),
        vec.and_(vec.shift_right(qs, 4), mask),
        vec.and_(vec.shift_right(qs, 6), mask),
    )


@inner
def four_groups(weights, y):
    """Products of 128 weights as i16x16."""
    w0, w1, w2, w3 = weights
    low = vec.add(vec.maddubs(w0, vec.load_i8x32(y)), vec.maddubs(w1, vec.load_i8x32(y + 32)))
    return vec.add(low, vec.add(vec.maddubs(w2, vec.load_i8x32(y + 64)), vec.maddubs(w3, vec.load_i8x32(y + 96))))


@inner
def dot(block, y, d_y, sums, acc, acc_min):
    """Add one block's products with 256 activations: all of them fit into int16."""
    products = vec.add(four_groups(half(block, 0), y), four_groups(half(block, 1), y + 128))
    total = vec.maddwd(vec.sub(products, vec.load_i16x16(sums)), vec.splat_i16x16(1))
    d = vec.fmul(vec.load_f16x4(block + D - 6), vec.splat_f32x4(d_y))
    return vec.fma(vec.fourth_f32(d), vec.f32_of_i32x8(total), acc), acc_min


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile."""
    for n in range(2):
        w0, w1, w2, w3 = half(block, n)
        vec.store_i8x32(out + 128 * n, w0)
        vec.store_i8x32(out + 128 * n + 32, w1)
        vec.store_i8x32(out + 128 * n + 64, w2)
        vec.store_i8x32(out + 128 * n + 96, w3)
    finish_row(out, vec.load_f16(block + D))


@inner
def dequantize(block, out):
    """Write the 256 weights of a block as f32."""
    d = vec.load_f16(block + D)
    for n in range(2):
        w0, w1, w2, w3 = half(block, n)
        scaled_weights(w0, d, out + 512 * n)
        scaled_weights(w1, d, out + 512 * n + 128)
        scaled_weights(w2, d, out + 512 * n + 256)
        scaled_weights(w3, d, out + 512 * n + 384)


@kernel
def embed(op, thread, n_threads):
    """Rows by token id."""
    embed_rows(dequantize, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matvec(op, thread, n_threads):
    """Rows times one column."""
    matvec_k(dot, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def few(op, thread, n_threads):
    """Rows times a few columns."""
    few_k(dot, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matmul(op, thread, n_threads):
    """Rows times the columns of a block."""
    matmul_tiles(unpack_row, finish_32, walk, NARROW, 256, BLOCK_BYTES, op, thread, n_threads)

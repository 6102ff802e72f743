"""Types with blocks of 256 ternary weights, which kernels hold one too large, as unsigned bytes.

A weight is d * (q - 1), q from 0 to 2.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matmul import ROW_D, ROW_MINIMA, ROW_SCALES, offset_scaling, store_half, tiles_k
from engine.kernels.matvec_k import row_kernels_k
from engine.kernels.type_kernels import type_kernels


@inner
def products_of_128(w, y):
    """Return the products of 128 weights as i16x16."""
    w0, w1, w2, w3 = w
    low = vec.add(vec.maddubs(w0, vec.load_i8x32(y)), vec.maddubs(w1, vec.load_i8x32(y + 32)))
    return vec.add(
        low,
        vec.add(vec.maddubs(w2, vec.load_i8x32(y + 64)), vec.maddubs(w3, vec.load_i8x32(y + 96))),
    )


@inner
def scaled_weights(w, d, out):
    """Write 32 weights as f32."""
    w = vec.sub(w, vec.splat_i8x32(1))
    d = vec.splat_f32x8(d)
    vec.store_f32x8(out, vec.fmul(vec.first_bytes_f32(w), d))
    vec.store_f32x8(out + 32, vec.fmul(vec.second_bytes_f32(w), d))
    vec.store_f32x8(out + 64, vec.fmul(vec.third_bytes_f32(w), d))
    vec.store_f32x8(out + 96, vec.fmul(vec.fourth_bytes_f32(w), d))


@inner
def dequantize_half(w, d, out):
    """Write 128 weights as f32."""
    w0, w1, w2, w3 = w
    scaled_weights(w0, d, out)
    scaled_weights(w1, d, out + 128)
    scaled_weights(w2, d, out + 256)
    scaled_weights(w3, d, out + 384)


def ternary_type(module, block_bytes, halves):
    """Make the four kernels of a type whose blocks end with their scale.

    Args:
        halves: (block) -> the first and the last 128 weights of a block as bytes, four
            registers of 32 each.
    """

    @inner
    def dot(block, y, d_y, sums, acc, acc_min):
        first, last = halves(block)
        products = vec.add(
            products_of_128(first, y), products_of_128(last, y + 128)
        )  # all of them fit into int16
        total = vec.maddwd(vec.sub(products, vec.load_i16x16(sums)), vec.splat_i16x16(1))
        d = vec.fmul(vec.load_f16x4(block + block_bytes - 8), vec.splat_f32x4(d_y))
        return vec.fma(vec.fourth_f32(d), vec.f32_of_i32x8(total), acc), acc_min

    @inner
    def unpack_row(block, out, n_live):
        first, last = halves(block)
        store_half(first, out)
        store_half(last, out + 128)
        vec.store_i16x16(out + ROW_SCALES, vec.splat_i16x16(1))
        vec.store_i16x8(out + ROW_MINIMA, vec.low_half_i16(vec.splat_i16x16(-1)))
        vec.store_f32(out + ROW_D, vec.load_f16(block + block_bytes - 2))

    @inner
    def dequantize(block, out):
        (first, last) = halves(block)
        d = vec.load_f16(block + block_bytes - 2)
        dequantize_half(first, d, out)
        dequantize_half(last, d, out + 512)

    tiles = tiles_k(32, 32, offset_scaling)
    return type_kernels(
        module, 256, block_bytes, dequantize, row_kernels_k(dot, block_bytes), unpack_row, tiles
    )

"""Q4_K: 256 weights of 4 bits in eight sub-blocks of 32, each with a 6-bit scale and a 6-bit
minimum.

    d       f16        scale of the scales
    dmin    f16        scale of the minima
    scales  12 bytes   scale j and minimum j for j < 4: bits 0-5 of byte j and of byte 4+j
                       scale 4+j and minimum 4+j: low and high nibble of byte 8+j, below bits 6-7 of
                       byte j and of byte 4+j
    qs      128 bytes  sub-blocks 2j and 2j+1 in the low and high nibbles of bytes 32j..32j+31
                       2 + 2 + 12 + 128 = 144

A weight is ``d * scale * q - dmin * minimum``. Layout: ggml-common.h, block_q4_K.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.scales_k import sub_block_type


@inner
def pair_of(block, j):
    """Return the weights of sub-blocks 2j and 2j + 1 as bytes."""
    qs = vec.load_i8x32(block + 16 + 32 * j)
    return vec.and_(qs, vec.splat_i8x32(15)), vec.high_nibbles(qs)


@inner
def pair_of_two(first, second, offset):
    """Return the weights of two sub-blocks of two blocks, one in each half, given the offset of
    their nibbles."""
    qs = vec.load_two_i8x32(first + offset, second + offset)
    return vec.and_(qs, vec.splat_i8x64(15)), vec.and_(vec.shift_right(qs, 4), vec.splat_i8x64(15))


@inner
def weights_of_two(first, second):
    """Return the weights of the sub-blocks of two blocks, one in each half."""
    (w0, w1) = pair_of_two(first, second, 16)
    (w2, w3) = pair_of_two(first, second, 48)
    (w4, w5) = pair_of_two(first, second, 80)
    (w6, w7) = pair_of_two(first, second, 112)
    return w0, w1, w2, w3, w4, w5, w6, w7


@inner
def weight(block, j, k):
    """Return weight k of sub-block j."""
    return (vec.load_u8(block + 16 + 32 * (j >> 1) + k) >> (4 * (j & 1))) & 15


embed, matvec, small_batch, matmul = sub_block_type(
    __name__,
    144,
    n_products=32,
    sums_of=vec.sums_of_32_u4,
    pair_of=pair_of,
    any_pair_of=pair_of,
    weights_of_two=weights_of_two,
    weight=weight,
)

"""Q5_K: 256 weights of 5 bits in eight sub-blocks of 32, each with a 6-bit scale and a 6-bit
minimum.

    d       f16        scale of the scales
    dmin    f16        scale of the minima
    scales  12 bytes   packed as in Q4_K
    qh      32 bytes   upper bit of weight 32j+l in bit j of byte l
    qs      128 bytes  lower 4 bits: sub-blocks 2j and 2j+1 in the nibbles of bytes 32j..32j+31
                       2 + 2 + 12 + 32 + 128 = 176

A weight is ``d * scale * q - dmin * minimum``. Layout: ggml-common.h, block_q5_K.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.scales_k import sub_block_type

QH = 16
QS = 48


@inner
def with_fifth_bits(qs, even_bits, odd_bits):
    """Return nibbles with the bits that are at bit 4 of two other registers."""
    high = vec.splat_i8x32(16)
    even = vec.or_(vec.and_(qs, vec.splat_i8x32(15)), vec.and_(even_bits, high))
    return even, vec.or_(vec.high_nibbles(qs), vec.and_(odd_bits, high))


@inner
def bits_at_4(qh, j):
    """Return bits j of the bytes of qh, at bit 4; j is a constant."""
    return vec.shift_left(qh, 4 - j) if j < 4 else vec.shift_right(qh, j - 4)


@inner
def pair_of(block, j):
    """Return the weights of sub-blocks 2j and 2j + 1 as bytes; j is a constant."""
    qh = vec.load_i8x32(block + QH)
    return with_fifth_bits(
        vec.load_i8x32(block + QS + 32 * j), bits_at_4(qh, 2 * j), bits_at_4(qh, 2 * j + 1)
    )


@inner
def pair_of_two(first, second, qh, j):
    """Compute ``pair_of`` of two blocks, one in each half, given their upper bits."""
    qs = vec.load_two_i8x32(first + QS + 32 * j, second + QS + 32 * j)
    even_bits = vec.and_(bits_at_4(qh, 2 * j), vec.splat_i8x64(16))
    odd_bits = vec.and_(bits_at_4(qh, 2 * j + 1), vec.splat_i8x64(16))
    odd = vec.and_(vec.shift_right(qs, 4), vec.splat_i8x64(15))
    return vec.or_(vec.and_(qs, vec.splat_i8x64(15)), even_bits), vec.or_(odd, odd_bits)


@inner
def weights_of_two(first, second):
    """Return the weights of the sub-blocks of two blocks, one in each half."""
    qh = vec.load_two_i8x32(first + QH, second + QH)
    (w0, w1) = pair_of_two(first, second, qh, 0)
    (w2, w3) = pair_of_two(first, second, qh, 1)
    (w4, w5) = pair_of_two(first, second, qh, 2)
    (w6, w7) = pair_of_two(first, second, qh, 3)
    return w0, w1, w2, w3, w4, w5, w6, w7


@inner
def any_pair_of(block, j):
    """Compute ``pair_of`` for any j."""
    bits = vec.shift_right(vec.load_i8x32(block + QH), 2 * j)
    ones = vec.splat_i8x32(1)
    even_bits = vec.shift_left(vec.and_(bits, ones), 4)
    odd_bits = vec.shift_left(vec.and_(vec.shift_right(bits, 1), ones), 4)
    return with_fifth_bits(vec.load_i8x32(block + QS + 32 * j), even_bits, odd_bits)


@inner
def weight(block, j, k):
    """Return weight k of sub-block j."""
    low = (vec.load_u8(block + QS + 32 * (j >> 1) + k) >> (4 * (j & 1))) & 15
    return low + 16 * ((vec.load_u8(block + QH + k) >> j) & 1)


embed, matvec, small_batch, matmul = sub_block_type(
    __name__,
    176,
    n_products=16,
    sums_of=vec.sums_of_32_u5,
    pair_of=pair_of,
    any_pair_of=any_pair_of,
    weights_of_two=weights_of_two,
    weight=weight,
)

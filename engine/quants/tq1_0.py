"""TQ1_0: 256 weights of three values as digits of base 3, with one scale.

    qs  48 bytes  five digits each: weights l, l+32, ..., l+128 in the first 32 bytes (160 weights),
                  weights l, l+16, ..., l+64 in the other 16 (80 weights)
    qh  4 bytes   four digits each: weights l, l+4, l+8, l+12 of the last 16
    d   f16       scale
                  48 + 4 + 2 = 54

A weight is ``d * (digit - 1)``. The digits of a byte follow the point: digit n of a byte b
is 0 if b * 3^n mod 256 is below 256/3, 1 if it is below 512/3, else 2. Layout:
ggml-common.h, block_tq1_0.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.ternary import ternary_type


@inner
def next_digits(x):
    """Return the numbers with the next digit in front, shifted by 128 before and after."""
    return vec.add(vec.add(x, x), x)


@inner
def digits(x):
    """Return the first digits, 0 to 2, of numbers shifted by 128."""
    above = vec.add(
        vec.bytes_above(x, vec.splat_i8x32(85 - 128)),
        vec.bytes_above(x, vec.splat_i8x32(170 - 128)),
    )
    return vec.sub(vec.splat_i8x32(0), above)


@inner
def join_halves(low, high):
    """Return the lower half of one register and the upper half of another."""
    return vec.join_i8(vec.low_half_i8(low), vec.high_half_i8(high))


@inner
def halves(block):
    """Return the 256 weights as bytes, one too large: four registers of 32 for each half of the
    block."""
    top = vec.splat_i8x32(-128)
    a0 = vec.xor(vec.load_i8x32(block), top)
    a1 = next_digits(a0)
    a2 = next_digits(a1)
    a3 = next_digits(a2)
    a4 = next_digits(a3)
    b0 = vec.xor(vec.broadcast_16_bytes(block + 32), top)
    b1 = next_digits(b0)
    b2 = next_digits(b1)
    b3 = next_digits(b2)
    c0 = vec.xor(vec.broadcast_4_bytes(block + 48), top)
    c1 = next_digits(c0)
    c2 = next_digits(c1)
    c = vec.words_of_four(c0, c1, c2, next_digits(c2))
    b4 = join_halves(next_digits(b3), c)
    first = digits(a0), digits(a1), digits(a2), digits(a3)
    return first, (digits(a4), digits(join_halves(b0, b1)), digits(join_halves(b2, b3)), digits(b4))


embed, matvec, small_batch, matmul = ternary_type(__name__, 54, halves)

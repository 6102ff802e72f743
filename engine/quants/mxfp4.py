"""MXFP4: 32 weights of 4 bits, floats with two exponent bits and one of mantissa, and a power of
two as scale.

    e   u8        exponent of the scale
    qs  16 bytes  weights 0..15 in the low nibbles, 16..31 in the high ones
                  1 + 16 = 17

A weight is ``2^(e - 128) * VALUES[q]``: the values are doubled, so they are integers. Layout and
table: ggml-common.h, block_mxfp4 and kvalues_fp4.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.nibbles import entries_at, offset_type

VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
OFFSET = 12
RAISED_VALUES = tuple(value + OFFSET for value in VALUES)


@inner
def exponents(heads):
    """Return the scale of each block."""
    return vec.f32_of_exponents(heads[0])


embed, matvec, small_batch, matmul = offset_type(
    __name__,
    17,
    entries_at(1, RAISED_VALUES),
    OFFSET,
    vec.load_exponent,
    vec.load_exponents_strided,
    exponents,
)

"""Q5_1: 32 weights of 5 bits with one scale and one minimum.

    d   f16       scale
    m   f16       minimum
    qh  4 bytes   upper bit of weight l in bit l
    qs  16 bytes  lower 4 bits: weights 0..15 in the low nibbles, 16..31 in the high ones
                  2 + 2 + 4 + 16 = 24

A weight is ``d * q + m``. Layout: ggml-common.h, block_q5_1.
"""

from engine.kernels.nibbles import minimum_type, nibbles_and_bits_at

embed, matvec, small_batch, matmul = minimum_type(__name__, 24, nibbles_and_bits_at(8, 4))

"""Q5_0: 32 weights of 5 bits with one scale.

    d   f16       scale
    qh  4 bytes   upper bit of weight l in bit l
    qs  16 bytes  lower 4 bits: weights 0..15 in the low nibbles, 16..31 in the high ones
                  2 + 4 + 16 = 22

A weight is ``d * (q - 16)``. Layout: ggml-common.h, block_q5_0.
"""

from engine.kernels.nibbles import nibbles_and_bits_at, offset_type

embed, matvec, small_batch, matmul = offset_type(__name__, 22, nibbles_and_bits_at(6, 2), offset=16)

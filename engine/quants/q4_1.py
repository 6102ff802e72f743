"""Q4_1: 32 weights of 4 bits with one scale and one minimum.

    d   f16       scale
    m   f16       minimum
    qs  16 bytes  weights 0..15 in the low nibbles, 16..31 in the high ones
                  2 + 2 + 16 = 20

A weight is ``d * q + m``. Layout: ggml-common.h, block_q4_1.
"""

from engine.kernels.nibbles import minimum_type, nibbles_at

embed, matvec, small_batch, matmul = minimum_type(__name__, 20, nibbles_at(4))

"""Q4_0: 32 weights of 4 bits with one scale.

    d   f16       scale
    qs  16 bytes  weights 0..15 in the low nibbles, 16..31 in the high ones
                  2 + 16 = 18

A weight is ``d * (q - 8)``. Layout: ggml-common.h, block_q4_0.
"""

from engine.kernels.nibbles import nibbles_at, offset_type

embed, matvec, small_batch, matmul = offset_type(__name__, 18, nibbles_at(2), offset=8)

"""TQ2_0: 256 weights of three values in two bits each, with one scale.

    qs  64 bytes  32 bytes for each half of the block (128 weights): weights l, l+32, l+64, l+96 in
                  bits 0-1, 2-3, 4-5, 6-7
    d   f16       scale
                  64 + 2 = 66

A weight is ``d * (q - 1)``. Layout: ggml-common.h, block_tq2_0.
"""

from engine.jit import inner
from engine.kernels.matvec_k import two_bit_fields
from engine.kernels.ternary import ternary_type


@inner
def halves(block):
    """Return the 256 weights as bytes, one too large."""
    return two_bit_fields(block), two_bit_fields(block + 32)


embed, matvec, small_batch, matmul = ternary_type(__name__, 66, halves)

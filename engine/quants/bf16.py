"""BF16: bfloat16 weights, the upper halves of float32; 2 bytes each, no blocks."""

from engine import simd as vec
from engine.kernels.matmul_float import float_type

embed, matvec, small_batch, matmul = float_type(__name__, vec.load_bf16x8, vec.load_bf16, 2)

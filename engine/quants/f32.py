"""F32: float32 weights; 4 bytes each, no blocks."""

from engine import simd as vec
from engine.kernels.matmul_float import float_type

embed, matvec, small_batch, matmul = float_type(__name__, vec.load_f32x8, vec.load_f32, 4)

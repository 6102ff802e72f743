"""Parts shared by types with blocks of 256 ternary weights: weights are kept one too large, as unsigned bytes."""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matmul import OFFSETS_OF_32, ROW_D, ROW_MINIMA, ROW_SCALES, walk_k


@inner
def finish_row(out, d):
    """Write the scales of a row's part of a tile whose 256 weights are written."""
    vec.store_i16x16(out + ROW_SCALES, vec.splat_i16x16(1))
    vec.store_i16x8(out + ROW_MINIMA, vec.low_half_i16(vec.splat_i16x16(-1)))
    vec.store_f32(out + ROW_D, d)


walk = walk_k(32, 32, OFFSETS_OF_32)


@inner
def scaled_weights(w, d, out):
    """Write 32 weights as f32."""
    w, d = vec.sub(w, vec.splat_i8x32(1)), vec.splat_f32x8(d)
    vec.store_f32x8(out, vec.fmul(vec.first_bytes_f32(w), d))
    vec.store_f32x8(out + 32, vec.fmul(vec.second_bytes_f32(w), d))
    vec.store_f32x8(out + 64, vec.fmul(vec.third_bytes_f32(w), d))
    vec.store_f32x8(out + 96, vec.fmul(vec.fourth_bytes_f32(w), d))

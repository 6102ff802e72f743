"""Parts shared by types with blocks of 256 ternary weights: weights are kept one too large, as unsigned bytes."""

from engine.jit import inner
from engine.kernels.matmul import OFFSETS_OF_32, ROW_D, ROW_MINIMA, ROW_SCALES, walk_k
from engine.simd import (
    first_bytes_f32,
    fmul,
    fourth_bytes_f32,
    low_half_i16,
    second_bytes_f32,
    splat_f32x8,
    splat_i8x32,
    splat_i16x16,
    store_f32,
    store_f32x8,
    store_i16x8,
    store_i16x16,
    sub,
    third_bytes_f32,
)


@inner
def finish_row(out, d):
    """Write the scales of a row's part of a tile whose 256 weights are written."""
    store_i16x16(out + ROW_SCALES, splat_i16x16(1))
    store_i16x8(out + ROW_MINIMA, low_half_i16(splat_i16x16(-1)))
    store_f32(out + ROW_D, d)


walk = walk_k(32, 32, OFFSETS_OF_32)


@inner
def scaled_weights(w, d, out):
    """Write 32 weights as f32."""
    w, d = sub(w, splat_i8x32(1)), splat_f32x8(d)
    store_f32x8(out, fmul(first_bytes_f32(w), d))
    store_f32x8(out + 32, fmul(second_bytes_f32(w), d))
    store_f32x8(out + 64, fmul(third_bytes_f32(w), d))
    store_f32x8(out + 96, fmul(fourth_bytes_f32(w), d))

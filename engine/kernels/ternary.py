"""Parts shared by types with blocks of 256 ternary weights: weights are kept one too large, as unsigned bytes."""

from engine.jit import inner
from engine.kernels.matmul import ROW_D, ROW_MINIMA, ROW_SCALES, add_columns, offsets_of_32, sum_columns
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


@inner
def columns(view, tile, y, c, i, n_live, acc, room):
    """Four columns of one tile."""
    sum_columns(32, 32, tile, y, room)
    add_columns(offsets_of_32, room, view, tile, c, i, acc)


@inner
def scaled_weights(w, d, out):
    """Write 32 weights as f32."""
    w, d = sub(w, splat_i8x32(1)), splat_f32x8(d)
    store_f32x8(out, fmul(first_bytes_f32(w), d))
    store_f32x8(out + 32, fmul(second_bytes_f32(w), d))
    store_f32x8(out + 64, fmul(third_bytes_f32(w), d))
    store_f32x8(out + 96, fmul(fourth_bytes_f32(w), d))

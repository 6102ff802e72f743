"""Operations on registers with a lane for each row of a tile: sixteen rows with 512 bits, else
eight."""

from engine import simd as vec
from engine.machine.level import SIXTEEN_ROWS

load_floats, store_floats = (
    (vec.load_f32x16, vec.store_f32x16) if SIXTEEN_ROWS else (vec.load_f32x8, vec.store_f32x8)
)
load_ints = vec.load_i32x16 if SIXTEEN_ROWS else vec.load_i32x8
splat_floats = vec.splat_f32x16 if SIXTEEN_ROWS else vec.splat_f32x8
floats_of_ints = vec.f32_of_i32x16 if SIXTEEN_ROWS else vec.f32_of_i32x8
broadcast_int = vec.broadcast_i32x16 if SIXTEEN_ROWS else vec.broadcast_i32
broadcast_4 = vec.broadcast_4_bytes_64 if SIXTEEN_ROWS else vec.broadcast_4_bytes

load_pairs = vec.load_i16x32 if SIXTEEN_ROWS else vec.load_i16x16
splat_pair = vec.pairs_i16x32 if SIXTEEN_ROWS else vec.pairs_i16
pairs_of_bytes = vec.as_i16x32 if SIXTEEN_ROWS else vec.as_i16x16
dot_pairs = vec.maddwd_512 if SIXTEEN_ROWS else vec.maddwd
"""Operations on pairs: two int16 in the lane of a row.

``dot_pairs`` multiplies two pairs and adds both products.
"""

"""A register with a lane for each row of a tile: all sixteen where prefill uses 512 bits, else eight."""

from engine import simd as vec
from engine.machine.level import SIXTEEN_ROWS

load_floats, store_floats = (vec.load_f32x16, vec.store_f32x16) if SIXTEEN_ROWS else (vec.load_f32x8, vec.store_f32x8)
load_ints, store_ints = (vec.load_i32x16, vec.store_i32x16) if SIXTEEN_ROWS else (vec.load_i32x8, vec.store_i32x8)
splat_floats, splat_ints = (vec.splat_f32x16, vec.splat_i32x16) if SIXTEEN_ROWS else (vec.splat_f32x8, vec.splat_i32x8)
floats_of_ints = vec.f32_of_i32x16 if SIXTEEN_ROWS else vec.f32_of_i32x8
broadcast_int = vec.broadcast_i32x16 if SIXTEEN_ROWS else vec.broadcast_i32
broadcast_4 = vec.broadcast_4_bytes_64 if SIXTEEN_ROWS else vec.broadcast_4_bytes

load_words = vec.load_i16x32 if SIXTEEN_ROWS else vec.load_i16x16
pairs_of_words = vec.pairs_i16x32 if SIXTEEN_ROWS else vec.pairs_i16
words_of_bytes = vec.as_i16x32 if SIXTEEN_ROWS else vec.as_i16x16
add_word_pairs = vec.maddwd_512 if SIXTEEN_ROWS else vec.maddwd
"""int16 products, neighbours added: a row has two words."""

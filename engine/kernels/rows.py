"""A register with a lane for each row of a tile: all sixteen where prefill uses 512 bits, else eight."""

from engine.machine.level import SIXTEEN_ROWS
from engine.simd import (
    broadcast_4_bytes,
    broadcast_4_bytes_64,
    broadcast_i32,
    broadcast_i32x16,
    f32_of_i32x8,
    f32_of_i32x16,
    i16_of_i8,
    i16_of_i8x64,
    load_f32x8,
    load_f32x16,
    load_i16x16,
    load_i16x32,
    load_i32x8,
    load_i32x16,
    maddwd,
    maddwd_512,
    pairs_i16,
    pairs_i16x32,
    splat_f32x8,
    splat_f32x16,
    splat_i32x8,
    splat_i32x16,
    store_f32x8,
    store_f32x16,
    store_i32x8,
    store_i32x16,
)

load_floats, store_floats = (load_f32x16, store_f32x16) if SIXTEEN_ROWS else (load_f32x8, store_f32x8)
load_ints, store_ints = (load_i32x16, store_i32x16) if SIXTEEN_ROWS else (load_i32x8, store_i32x8)
splat_floats, splat_ints = (splat_f32x16, splat_i32x16) if SIXTEEN_ROWS else (splat_f32x8, splat_i32x8)
floats_of_ints = f32_of_i32x16 if SIXTEEN_ROWS else f32_of_i32x8
broadcast_int = broadcast_i32x16 if SIXTEEN_ROWS else broadcast_i32
broadcast_4 = broadcast_4_bytes_64 if SIXTEEN_ROWS else broadcast_4_bytes

load_words = load_i16x32 if SIXTEEN_ROWS else load_i16x16
pairs_of_words = pairs_i16x32 if SIXTEEN_ROWS else pairs_i16
words_of_bytes = i16_of_i8x64 if SIXTEEN_ROWS else i16_of_i8
add_word_pairs = maddwd_512 if SIXTEEN_ROWS else maddwd
"""int16 products, neighbours added: a row has two words."""

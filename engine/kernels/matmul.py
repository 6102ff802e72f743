"""Tiles of 256-weight blocks times columns in q8_k form: what the K types share in prefill.

An unpacked row holds 256 bytes of weights, then 16 scales as two equal int16 each (eight are used by the types with
sub-blocks of 32), eight pairs of int16 minima, and the two f32 scales.
"""

from engine.jit import inner
from engine.kernels.tiles import SCRATCH_BYTES as SCRATCH_BYTES
from engine.records import MATMUL as F
from engine.simd import (
    abs_i8,
    add,
    broadcast_4_bytes,
    f32_of_i32x8,
    fma,
    fmul,
    i16_of_i8,
    in_order,
    load_f32,
    load_f32x8,
    load_i8x32,
    load_i16x16,
    load_i64,
    maddubs,
    maddwd,
    splat_f32x8,
    splat_i16x16,
    splat_i32x8,
    store_f32x8,
    with_sign_of,
)

ROW_SCALES, ROW_MINIMA, ROW_D, ROW_DMIN = 256, 320, 352, 356
"""Byte offsets in an unpacked row: 256 + 64 + 32 + 4 + 4 = 360 of the 384."""
_SCALES, _MINIMA, _D, _DMIN = 8 * ROW_SCALES, 8 * ROW_MINIMA, 8 * ROW_D, 8 * ROW_DMIN


@inner
def sum_columns(n_adds, group, tile, y, stride):
    """Exact integer part of one superblock for four columns, i32x8 each; unsigned weights.

    Args:
        n_adds: products that fit into int16 before they must be scaled.
        group: weights that share a scale, 16 or 32.
    """
    t0, t1, t2, t3 = splat_i32x8(0), splat_i32x8(0), splat_i32x8(0), splat_i32x8(0)
    for g in range(256 // group):
        scale = load_i16x16(tile + _SCALES + 32 * g)
        for first in range(0, group, 4 * n_adds):
            s0, s1, s2, s3 = splat_i16x16(0), splat_i16x16(0), splat_i16x16(0), splat_i16x16(0)
            for k in range(first, first + 4 * n_adds, 4):
                w, at = load_i8x32(tile + 8 * (g * group + k)), y + g * group + k
                s0 = add(s0, maddubs(w, broadcast_4_bytes(at)))
                s1 = add(s1, maddubs(w, broadcast_4_bytes(at + stride)))
                s2 = add(s2, maddubs(w, broadcast_4_bytes(at + 2 * stride)))
                s3 = add(s3, maddubs(w, broadcast_4_bytes(at + 3 * stride)))
            t0, t1 = add(t0, maddwd(s0, scale)), add(t1, maddwd(s1, scale))
            t2, t3 = add(t2, maddwd(s2, scale)), add(t3, maddwd(s3, scale))
    return t0, t1, t2, t3


@inner
def sum_columns_signed(n_adds, group, tile, y, stride):
    """The same for signed weights; the sign moves to the activations, and no offset is left to be taken off."""
    t0, t1, t2, t3 = splat_i32x8(0), splat_i32x8(0), splat_i32x8(0), splat_i32x8(0)
    for g in range(256 // group):
        scale = load_i16x16(tile + _SCALES + 32 * g)
        for first in range(0, group, 4 * n_adds):
            s0, s1, s2, s3 = splat_i16x16(0), splat_i16x16(0), splat_i16x16(0), splat_i16x16(0)
            for k in range(first, first + 4 * n_adds, 4):
                w, at = load_i8x32(tile + 8 * (g * group + k)), y + g * group + k
                size = abs_i8(w)
                s0 = in_order(add(s0, maddubs(size, with_sign_of(broadcast_4_bytes(at), w))))
                s1 = in_order(add(s1, maddubs(size, with_sign_of(broadcast_4_bytes(at + stride), w))))
                s2 = in_order(add(s2, maddubs(size, with_sign_of(broadcast_4_bytes(at + 2 * stride), w))))
                s3 = in_order(add(s3, maddubs(size, with_sign_of(broadcast_4_bytes(at + 3 * stride), w))))
            t0, t1 = add(t0, maddwd(s0, scale)), add(t1, maddwd(s1, scale))
            t2, t3 = add(t2, maddwd(s2, scale)), add(t3, maddwd(s3, scale))
    return t0, t1, t2, t3


@inner
def minima_total(n_pairs, tile, sums):
    """Sum over pairs of sub-blocks of minimum times activation sum, for one column."""
    total = splat_i32x8(0)
    for p in range(n_pairs):
        pair = i16_of_i8(broadcast_4_bytes(sums + 4 * p))
        total = add(total, maddwd(load_i16x16(tile + _MINIMA + 32 * p), pair))
    return total


@inner
def minima_of_32(tile, t, sums):
    """One column's value before the activations' scale: d * t + dmin * minima, eight minima."""
    value = fmul(load_f32x8(tile + _D), f32_of_i32x8(t))
    return fma(load_f32x8(tile + _DMIN), f32_of_i32x8(minima_total(4, tile, sums + 32)), value)


@inner
def minima_of_16(tile, t, sums):
    """The same with sixteen minima."""
    value = fmul(load_f32x8(tile + _D), f32_of_i32x8(t))
    return fma(load_f32x8(tile + _DMIN), f32_of_i32x8(minima_total(8, tile, sums)), value)


@inner
def offsets_of_16(tile, t, sums):
    """The same where the minima are multiples of the scales, and so stay integers."""
    return fmul(load_f32x8(tile + _D), f32_of_i32x8(add(t, minima_total(8, tile, sums))))


@inner
def no_minima(tile, t, sums):
    """The same without minima."""
    return fmul(load_f32x8(tile + _D), f32_of_i32x8(t))


@inner
def activations_k(op, c, i):
    """Address of 256 activations of column c, and the bytes to the next column."""
    n_cols = load_i64(op + F.n_cols)
    return load_i64(op + F.q) + c * n_cols + 256 * i, n_cols


@inner
def add_columns(scaled, parts, op, tile, c, i, acc):
    """Scale the integer parts of four columns and add them to their f32 lanes in memory.

    Args:
        scaled: (tile, t, sums) -> f32x8, one column's value before the activations' scale.
    """
    n_blocks = load_i64(op + F.n_cols) // 256
    sums, d = load_i64(op + F.sums) + 48 * (c * n_blocks + i), load_i64(op + F.d) + 4 * (c * n_blocks + i)
    t0, t1, t2, t3 = parts
    add_column(acc, scaled(tile, t0, sums), d)
    add_column(acc + 32, scaled(tile, t1, sums + 48 * n_blocks), d + 4 * n_blocks)
    add_column(acc + 64, scaled(tile, t2, sums + 96 * n_blocks), d + 8 * n_blocks)
    add_column(acc + 96, scaled(tile, t3, sums + 144 * n_blocks), d + 12 * n_blocks)


@inner
def add_column(acc, value, d):
    """Add one column's value times the activations' scale."""
    store_f32x8(acc, fma(value, splat_f32x8(load_f32(d)), load_f32x8(acc)))

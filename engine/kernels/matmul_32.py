"""Tiles of 32-weight blocks times columns in q8_0 form: what these types share in prefill.

A tile takes eight blocks of a row. An unpacked row holds 256 bytes of weights, then eight f32 scales and, for the types
that have them, eight f32 minima.
"""

from engine.jit import inner
from engine.records import MATMUL as F
from engine.simd import (
    abs_i8,
    add,
    broadcast_4_bytes,
    broadcast_i32,
    f32_of_i32x8,
    fma,
    fmul,
    i16_of_i8,
    in_order,
    load_f32,
    load_f32x8,
    load_i8x32,
    load_i64,
    maddubs,
    maddwd,
    pairs_i16,
    splat_f32x8,
    splat_i16x16,
    splat_i32x8,
    store_f32x8,
    with_sign_of,
)

ROW_D, ROW_M = 256, 288
"""Byte offsets in an unpacked row: 256 + 32 + 32 = 320 of the 384."""
_D, _M = 8 * ROW_D, 8 * ROW_M


@inner
def sum_unsigned(n_adds, tile, y, stride):
    """Exact integer part of one block for four columns: i32x8 each.

    Args:
        n_adds: products that fit into int16.
    """
    t0, t1, t2, t3 = splat_i32x8(0), splat_i32x8(0), splat_i32x8(0), splat_i32x8(0)
    ones = splat_i16x16(1)
    for g in range(8 // n_adds):
        s0, s1, s2, s3 = splat_i16x16(0), splat_i16x16(0), splat_i16x16(0), splat_i16x16(0)
        for k in range(n_adds):
            w = load_i8x32(tile + 32 * (g * n_adds + k))
            at = y + 4 * (g * n_adds + k)
            s0 = in_order(add(s0, maddubs(w, broadcast_4_bytes(at))))
            s1 = in_order(add(s1, maddubs(w, broadcast_4_bytes(at + stride))))
            s2 = in_order(add(s2, maddubs(w, broadcast_4_bytes(at + 2 * stride))))
            s3 = in_order(add(s3, maddubs(w, broadcast_4_bytes(at + 3 * stride))))
        t0, t1 = add(t0, maddwd(s0, ones)), add(t1, maddwd(s1, ones))
        t2, t3 = add(t2, maddwd(s2, ones)), add(t3, maddwd(s3, ones))
    return t0, t1, t2, t3


@inner
def sum_signed(tile, y, stride):
    """The same for weights of eight bits and a sign, which moves to the activations."""
    t0, t1, t2, t3 = splat_i32x8(0), splat_i32x8(0), splat_i32x8(0), splat_i32x8(0)
    ones = splat_i16x16(1)
    for k in range(8):
        w = load_i8x32(tile + 32 * k)
        size, at = abs_i8(w), y + 4 * k
        t0 = add(t0, maddwd(maddubs(size, with_sign_of(broadcast_4_bytes(at), w)), ones))
        t1 = add(t1, maddwd(maddubs(size, with_sign_of(broadcast_4_bytes(at + stride), w)), ones))
        t2 = add(t2, maddwd(maddubs(size, with_sign_of(broadcast_4_bytes(at + 2 * stride), w)), ones))
        t3 = add(t3, maddwd(maddubs(size, with_sign_of(broadcast_4_bytes(at + 3 * stride), w)), ones))
    return t0, t1, t2, t3


@inner
def add_scaled(scales, t, d_y, sums, acc):
    """Add one block of one column, d * d_y * t, to eight f32 in memory; lanes are rows.

    Args:
        scales: address of the block's eight d in the tile.
        d_y, sums: addresses of the activations' scale and int32 sum.
    """
    value = fmul(load_f32x8(scales), f32_of_i32x8(t))
    store_f32x8(acc, fma(value, splat_f32x8(load_f32(d_y)), load_f32x8(acc)))


@inner
def add_offset_8(scales, t, d_y, sums, acc):
    """The same for weights that are stored 8 too large."""
    add_scaled(scales, add(t, maddwd(pairs_i16(-8, 0), i16_of_i8(broadcast_4_bytes(sums)))), d_y, sums, acc)


@inner
def add_offset_16(scales, t, d_y, sums, acc):
    """The same for weights that are stored 16 too large."""
    add_scaled(scales, add(t, maddwd(pairs_i16(-16, 0), i16_of_i8(broadcast_4_bytes(sums)))), d_y, sums, acc)


@inner
def add_minimum(scales, t, d_y, sums, acc):
    """The same for weights with a minimum: d_y * (d * t + m * sum)."""
    minima = fmul(load_f32x8(scales + _M - _D), f32_of_i32x8(broadcast_i32(sums)))
    value = fma(load_f32x8(scales), f32_of_i32x8(t), minima)
    store_f32x8(acc, fma(value, splat_f32x8(load_f32(d_y)), load_f32x8(acc)))


@inner
def columns_32(sum_block, add_block, op, tile, c, i, n_live, acc):
    """Add the products of the blocks of a tile with four columns.

    Args:
        sum_block: (tile, y, stride) -> four i32x8.
        add_block: (scales, t, d_y, sums, acc) -> None, acc being an address: in registers the accumulators would push
            others out.
    """
    n_cols = load_i64(op + F.n_cols)
    n_blocks = n_cols // 32
    y = load_i64(op + F.q) + c * n_cols + 256 * i
    first = 4 * (c * n_blocks + 8 * i)
    d, sums, step = load_i64(op + F.d) + first, load_i64(op + F.sums) + first, 4 * n_blocks
    for b in range(n_live // 32):
        t0, t1, t2, t3 = sum_block(tile + 256 * b, y + 32 * b, n_cols)
        scales, e, s = tile + _D + 32 * b, d + 4 * b, sums + 4 * b
        add_block(scales, t0, e, s, acc)
        add_block(scales, t1, e + step, s + step, acc + 32)
        add_block(scales, t2, e + 2 * step, s + 2 * step, acc + 64)
        add_block(scales, t3, e + 3 * step, s + 3 * step, acc + 96)

"""Tiles of float weights times f32 columns: what F32, F16 and BF16 share in prefill.

A tile takes 64 weights of a row, widened to f32: 256 bytes.
"""

from engine.jit import inner
from engine.records import MATMUL as F
from engine.simd import (
    bytes_of_f32x8,
    fadd,
    fma,
    load_f32,
    load_f32x8,
    load_i64,
    rolled,
    splat_f32x8,
    store_f32,
    store_f32x8,
    store_i8x32,
)

TILE_COLS = 64


@inner
def unpack_floats(load8, load1, item_bytes, source, out, n_live):
    """Widen one row's part of a tile.

    Args:
        load8: (address) -> f32x8.
        load1: (address) -> f32.
    """
    eights = n_live & ~7
    for k in range(0, eights, 8):
        store_i8x32(out + 4 * k, bytes_of_f32x8(load8(source + item_bytes * rolled(k))))
    for k in range(eights, n_live):
        store_f32(out + 4 * k, load1(source + item_bytes * rolled(k)))


@inner
def multiply_add(w, y, acc):
    """acc + w * one activation."""
    return fma(w, splat_f32x8(load_f32(y)), acc)


@inner
def columns_float(op, tile, c, i, n_live, acc):
    """Add the products of a tile with four columns; even and odd weights in accumulators of their own."""
    stride = 4 * load_i64(op + F.n_cols)
    y = load_i64(op + F.q) + c * stride + 4 * TILE_COLS * i
    y1, y2, y3 = y + stride, y + 2 * stride, y + 3 * stride
    a0, a1, a2, a3 = splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0)
    b0, b1, b2, b3 = splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0)
    for at in range(0, 4 * (n_live & ~1), 8):
        w = load_f32x8(tile + 8 * at)
        a0, a1 = multiply_add(w, y + at, a0), multiply_add(w, y1 + at, a1)
        a2, a3 = multiply_add(w, y2 + at, a2), multiply_add(w, y3 + at, a3)
        w = load_f32x8(tile + 8 * at + 32)
        b0, b1 = multiply_add(w, y + at + 4, b0), multiply_add(w, y1 + at + 4, b1)
        b2, b3 = multiply_add(w, y2 + at + 4, b2), multiply_add(w, y3 + at + 4, b3)
    if n_live & 1:
        at = 4 * (n_live - 1)
        w = load_f32x8(tile + 8 * at)
        a0, a1 = multiply_add(w, y + at, a0), multiply_add(w, y1 + at, a1)
        a2, a3 = multiply_add(w, y2 + at, a2), multiply_add(w, y3 + at, a3)
    store_f32x8(acc, fadd(load_f32x8(acc), fadd(a0, b0)))
    store_f32x8(acc + 32, fadd(load_f32x8(acc + 32), fadd(a1, b1)))
    store_f32x8(acc + 64, fadd(load_f32x8(acc + 64), fadd(a2, b2)))
    store_f32x8(acc + 96, fadd(load_f32x8(acc + 96), fadd(a3, b3)))

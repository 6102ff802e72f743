"""Prefill of F32, F16 and BF16: tiles of weights times f32 activations.

out[t] = weights @ x[t], sums in f32. A tile takes 64 weights of a row, widened to f32: 256 bytes.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matvec_float import row_kernels_float
from engine.kernels.tiles import TILE_TOKENS, Tiles, loop_over_tokens
from engine.kernels.type_kernels import type_kernels

TILE_COLS = 64


@inner
def unpack_floats(load8, load1, item_bytes, source, out, n_live):
    """Write one row's part of a tile, widened to f32.

    Args:
        load8: (address) -> f32x8.
        load1: (address) -> f32.
    """
    eights = n_live & ~7
    for k in range(0, eights, 8):
        vec.store_i8x32(out + 4 * k, vec.bytes_of_f32x8(load8(source + item_bytes * vec.rolled(k))))
    for k in range(eights, n_live):
        vec.store_f32(out + 4 * k, load1(source + item_bytes * vec.rolled(k)))


@inner
def floats_at(view, c, i, n_live):
    """Return the address of token c's activations for tile i; tokens are a row's length apart."""
    q, _, _, n_cols, _ = view
    return q + 4 * (c * n_cols + TILE_COLS * i)


@inner
def add_products(tile, y, stride, t):
    """Add the products of one weight of sixteen rows with four tokens to f32x8."""
    (a0, a1, a2, a3), (b0, b1, b2, b3) = t
    low = vec.load_f32x8(tile)
    high = vec.load_f32x8(tile + 32)
    y0 = vec.splat_f32x8(vec.load_f32(y))
    y1 = vec.splat_f32x8(vec.load_f32(y + stride))
    y2 = vec.splat_f32x8(vec.load_f32(y + 2 * stride))
    y3 = vec.splat_f32x8(vec.load_f32(y + 3 * stride))
    lows = vec.fma(low, y0, a0), vec.fma(low, y1, a1), vec.fma(low, y2, a2), vec.fma(low, y3, a3)
    return lows, (
        vec.fma(high, y0, b0),
        vec.fma(high, y1, b1),
        vec.fma(high, y2, b2),
        vec.fma(high, y3, b3),
    )


@inner
def add_to(acc, t):
    """Add four tokens of eight rows to memory, 64 bytes apart."""
    t0, t1, t2, t3 = t
    vec.store_f32x8(acc, vec.fadd(vec.load_f32x8(acc), t0))
    vec.store_f32x8(acc + 64, vec.fadd(vec.load_f32x8(acc + 64), t1))
    vec.store_f32x8(acc + 128, vec.fadd(vec.load_f32x8(acc + 128), t2))
    vec.store_f32x8(acc + 192, vec.fadd(vec.load_f32x8(acc + 192), t3))


@inner
def tokens_float(view, tile, y, c, i, n_live, acc, scratch):
    """Add the products of a tile with ``TILE_TOKENS`` tokens from c on, four at a time."""
    _, _, _, n_cols, _ = view
    zero = vec.splat_f32x8(0.0)
    for n in range(0, TILE_TOKENS, 4):
        t = (zero, zero, zero, zero), (zero, zero, zero, zero)
        for k in range(n_live):
            t = add_products(tile + 64 * k, y + 4 * (n * n_cols + k), 4 * n_cols, t)
        low, high = t
        add_to(acc + 64 * n, low)
        add_to(acc + 64 * n + 32, high)


TILES_FLOAT = Tiles(loop_over_tokens(floats_at, tokens_float), n_cols=TILE_COLS)


def float_type(module, load8, load1, item_bytes):
    """Make the four kernels of a type that is not quantised.

    Args:
        load8: (address) -> f32x8.
        load1: (address) -> f32.
        item_bytes: Bytes of a weight.
    """

    @inner
    def unpack_row(source, out, n_live):
        unpack_floats(load8, load1, item_bytes, source, out, n_live)

    @inner
    def dequantize(source, out):
        vec.store_f32(out, load1(source))

    rows = row_kernels_float(load8, load1, item_bytes)
    return type_kernels(module, 1, item_bytes, dequantize, rows, unpack_row, TILES_FLOAT)

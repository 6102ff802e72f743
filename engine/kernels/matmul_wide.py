"""Tiles of int16 weights times columns widened to int16: for weights of eight bits and a sign.

Two such products do not fit into int16, so the byte form has to fold every one of them, and to move
signs about before. Widened, a product and its fold are one instruction. A scale of a sub-block,
where it is an integer, is multiplied in when a row is unpacked: 127 * 32 * 127 summed over 256
weights stays below 2^31.

An unpacked row holds 512 bytes of weights, then up to eight f32 scales.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matmul import add_two, signed_scaling, tiles_of_bytes
from engine.kernels.matmul_32 import add_by_halves, scaled
from engine.kernels.matmul_fours import no_products
from engine.kernels.tiles import WIDE, Tiles, each_columns, words_at
from engine.machine.level import SUMS_FOURS

ROW_D = 512
"""Byte offset of the scales in an unpacked row: 512 + 32 of the 544."""
TILE_D = 16 * ROW_D


@inner
def store_wide(out, w):
    """Write 32 weights of one row as int16."""
    vec.store_i16x16(out, vec.widen_i8x16(vec.low_half_i8(w)))
    vec.store_i16x16(out + 32, vec.widen_i8x16(vec.high_half_i8(w)))


@inner
def store_scaled(out, w, low, high):
    """The same times a scale for the first sixteen, and another for the others."""
    vec.store_i16x16(out, vec.mul(vec.widen_i8x16(vec.low_half_i8(w)), vec.splat_i16x16(low)))
    vec.store_i16x16(
        out + 32, vec.mul(vec.widen_i8x16(vec.high_half_i8(w)), vec.splat_i16x16(high))
    )


@inner
def two_activations(y):
    """Two int16 activations in all lanes."""
    return vec.as_i16x16(vec.broadcast_4_bytes(y))


@inner
def add_pair(tile, y, t):
    """Products of two weights of sixteen rows with four columns, added to i32x8: columns of the
    first eight rows, then of the others."""
    (a0, a1, a2, a3), (b0, b1, b2, b3) = t
    low = vec.load_i16x16(tile)
    high = vec.load_i16x16(tile + 32)
    y0 = two_activations(y)
    y1 = two_activations(y + 8)
    a0, b0 = add_two(a0, b0, vec.maddwd(low, y0), vec.maddwd(high, y0))
    a1, b1 = add_two(a1, b1, vec.maddwd(low, y1), vec.maddwd(high, y1))
    y2 = two_activations(y + 16)
    y3 = two_activations(y + 24)
    a2, b2 = add_two(a2, b2, vec.maddwd(low, y2), vec.maddwd(high, y2))
    a3, b3 = add_two(a3, b3, vec.maddwd(low, y3), vec.maddwd(high, y3))
    return (a0, a1, a2, a3), (b0, b1, b2, b3)


@inner
def add_eight(tile, y, t):
    """The same of eight weights."""
    t = add_pair(tile + 64, y + 4, add_pair(tile, y, t))
    return add_pair(tile + 192, y + 36, add_pair(tile + 128, y + 32, t))


@inner
def add_32(tile, y, t):
    """The same of 32."""
    t = add_eight(tile + 256, y + 64, add_eight(tile, y, t))
    return add_eight(tile + 768, y + 192, add_eight(tile + 512, y + 128, t))


@inner
def columns_wide(view, tile, y, c, i, n_live, acc, room):
    """Add the products of a tile's 32-weight blocks with four columns."""
    _, d, sums, _, padded = view
    for b in range(n_live // 32):
        at = 4 * ((8 * i + b) * padded + c)
        t = add_32(tile + 1024 * b, y + 256 * b, no_products())
        add_by_halves(scaled, tile + TILE_D + 64 * b, t, d + at, sums + at, acc)


@inner
def columns_wide_k(view, tile, y, c, i, n_live, acc, room):
    """The same for 256 weights whose scales were multiplied in, and one scale that was not."""
    _, d, sums, _, padded = view
    t = no_products()
    for k in range(vec.rolled(8)):
        t = add_32(tile + 1024 * k, y + 256 * k, t)
    at = 4 * (i * padded + c)
    add_by_halves(scaled, tile + TILE_D, t, d + at, sums + at, acc)


TILES_WIDE = Tiles(each_columns(words_at, columns_wide), room_bytes=WIDE)


def tiles_signed_k(group):
    """Tiles of signed weights in q8_k form, ``group`` of which share a scale."""
    if SUMS_FOURS:
        return tiles_of_bytes(group, group, signed_scaling)
    return Tiles(each_columns(words_at, columns_wide_k), room_bytes=WIDE)

"""Prefill of signed 8-bit weights without VNNI: int16 tiles times activations widened to int16.

Two products of signed bytes do not fit into int16, so the byte form would fold every one of them
and move signs first. With int16, a product and its fold are one instruction. Integer scales of
sub-blocks are multiplied in when a row is unpacked: 127 * 32 * 127 summed over 256 weights stays
below 2^31.

An unpacked row holds 512 bytes of weights, then up to eight f32 scales.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matmul import add_two, signed_scaling, tiles_of_bytes
from engine.kernels.matmul_32 import add_by_halves, scaled
from engine.kernels.matmul_fours import zero_products
from engine.kernels.tiles import WIDE, Tiles, loop_over_tokens, words_at
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
    """Write 32 weights of one row as int16, times a scale for each sixteen."""
    vec.store_i16x16(out, vec.mul(vec.widen_i8x16(vec.low_half_i8(w)), vec.splat_i16x16(low)))
    vec.store_i16x16(
        out + 32, vec.mul(vec.widen_i8x16(vec.high_half_i8(w)), vec.splat_i16x16(high))
    )


@inner
def two_activations(y):
    """Return two int16 activations in all lanes."""
    return vec.as_i16x16(vec.broadcast_4_bytes(y))


@inner
def add_pair(tile, y, t):
    """Add the products of two weights of sixteen rows with four tokens to i32x8.

    The sums are those of the first eight rows, then of the others.
    """
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
    """Add the products of eight weights with four tokens."""
    t = add_pair(tile + 64, y + 4, add_pair(tile, y, t))
    return add_pair(tile + 192, y + 36, add_pair(tile + 128, y + 32, t))


@inner
def add_32(tile, y, t):
    """Add the products of 32 weights with four tokens."""
    t = add_eight(tile + 256, y + 64, add_eight(tile, y, t))
    return add_eight(tile + 768, y + 192, add_eight(tile + 512, y + 128, t))


@inner
def tokens_wide(view, tile, y, c, i, n_live, acc, scratch):
    """Add the products of a tile's 32-weight blocks with four tokens."""
    _, d, sums, _, n_padded = view
    for b in range(n_live // 32):
        offset = 4 * ((8 * i + b) * n_padded + c)
        t = add_32(tile + 1024 * b, y + 256 * b, zero_products())
        add_by_halves(scaled, tile + TILE_D + 64 * b, t, d + offset, sums + offset, acc)


@inner
def tokens_wide_k(view, tile, y, c, i, n_live, acc, scratch):
    """Add the products of 256 weights, whose integer scales are multiplied in, with four tokens."""
    _, d, sums, _, n_padded = view
    t = zero_products()
    for k in range(vec.rolled(8)):
        t = add_32(tile + 1024 * k, y + 256 * k, t)
    offset = 4 * (i * n_padded + c)
    add_by_halves(scaled, tile + TILE_D, t, d + offset, sums + offset, acc)


TILES_WIDE = Tiles(loop_over_tokens(words_at, tokens_wide), unpacked_bytes=WIDE)


def tiles_signed_k(group):
    """Make the tiles of signed weights in q8_k form; ``group`` weights share a scale."""
    if SUMS_FOURS:
        return tiles_of_bytes(group, group, signed_scaling)
    return Tiles(loop_over_tokens(words_at, tokens_wide_k), unpacked_bytes=WIDE)

"""Products of byte tiles in prefill, summed four at a time: VNNI and ARM64.

No sum has to fit into int16, so one form serves weights of all widths. A tile is ``[group][16
rows][4 bytes]``; one instruction takes a group.
"""

from engine import simd as vec
from engine.jit import inner
from engine.machine.level import SIXTEEN_ROWS


@inner
def zero_products():
    """Return zeros for sixteen rows and four tokens: four i32x8 of the first rows, four of the
    others."""
    zero = vec.splat_i32x8(0)
    return (zero, zero, zero, zero), (zero, zero, zero, zero)


@inner
def four_weights_in_halves(tile, y, t):
    """Add the products of four weights of sixteen rows with four tokens to i32x8."""
    (a0, a1, a2, a3), (b0, b1, b2, b3) = t
    low = vec.load_i8x32(tile)
    high = vec.load_i8x32(tile + 32)
    y0 = vec.broadcast_4_bytes(y)
    y1 = vec.broadcast_4_bytes(y + 4)
    a0 = vec.opaque(vec.add_fours(a0, low, y0))
    b0 = vec.opaque(vec.add_fours(b0, high, y0))
    a1 = vec.opaque(vec.add_fours(a1, low, y1))
    b1 = vec.opaque(vec.add_fours(b1, high, y1))
    y2 = vec.broadcast_4_bytes(y + 8)
    y3 = vec.broadcast_4_bytes(y + 12)
    a2 = vec.opaque(vec.add_fours(a2, low, y2))
    b2 = vec.opaque(vec.add_fours(b2, high, y2))
    a3 = vec.opaque(vec.add_fours(a3, low, y3))
    b3 = vec.opaque(vec.add_fours(b3, high, y3))
    return (a0, a1, a2, a3), (b0, b1, b2, b3)


@inner
def four_weights_512(tile, y, t):
    """Add the products of four weights with four tokens, with sixteen rows in a register: four
    i32x16."""
    t0, t1, t2, t3 = t
    w = vec.load_i8x64(tile)
    t0 = vec.opaque(vec.add_fours(t0, w, vec.broadcast_4_bytes_64(y)))
    t1 = vec.opaque(vec.add_fours(t1, w, vec.broadcast_4_bytes_64(y + 4)))
    t2 = vec.opaque(vec.add_fours(t2, w, vec.broadcast_4_bytes_64(y + 8)))
    t3 = vec.opaque(vec.add_fours(t3, w, vec.broadcast_4_bytes_64(y + 12)))
    return t0, t1, t2, t3


@inner
def zero_fours_512():
    """Return zeros for sixteen rows and four tokens, as i32x16."""
    zero = vec.splat_i32x16(0)
    return zero, zero, zero, zero


four_weights = four_weights_512 if SIXTEEN_ROWS else four_weights_in_halves
zero_fours = zero_fours_512 if SIXTEEN_ROWS else zero_products


@inner
def sixteen_weights(tile, y, t):
    """Add the products of sixteen weights with four tokens."""
    t = four_weights(tile + 64, y + 16, four_weights(tile, y, t))
    return four_weights(tile + 192, y + 48, four_weights(tile + 128, y + 32, t))


@inner
def sum_32(tile, y):
    """Return the exact integer part of a block of 32 weights."""
    return sixteen_weights(tile + 256, y + 64, sixteen_weights(tile, y, zero_fours()))

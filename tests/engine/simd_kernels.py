"""Kernels that run each vector intrinsic once: (input address, output address); ``test_simd`` has the twins.

The input holds 32 random bytes at 0 (a), 32 (b) and 64 (c), 32 numbers from 0 to 15 at 96, eight small f32 at 128 (x),
160 (y) and 192 (z), and sixteen halves at 224. Each result takes 32 bytes of the output, in the order of the calls.
"""

from engine.jit import kernel
from engine.simd import (
    abs_i8,
    add,
    add_fours,
    add_halves,
    and_,
    broadcast_4_bytes,
    broadcast_16_bytes,
    broadcast_i32,
    broadcast_two_4_bytes,
    bytes_equal,
    cycles,
    each_twice_i16x8,
    even_then_odd,
    f32_of_i32x8,
    fabs,
    fadd,
    fdiv,
    fifth_bits,
    fifth_bits_high,
    fifth_bits_low,
    first_f32,
    fma,
    fmax,
    fmin,
    fmul,
    fold_fours,
    fold_neighbours,
    fold_twos,
    four_u32,
    fourth_f32,
    fsub,
    half_lane0,
    half_lane5,
    high_half_i8,
    high_half_i16,
    high_half_i32,
    high_nibbles,
    i16_of_i8,
    i32_of_i16x8,
    i32x8_of_i32x4,
    in_order,
    join_i8,
    join_i32,
    keep_order,
    lane0,
    lane7,
    load_bf16,
    load_bf16x8,
    load_f16,
    load_f16x4,
    load_f16x8,
    load_f16x8_strided,
    load_f32,
    load_f32x8,
    load_i8x8_as_f32,
    load_i8x16,
    load_i8x32,
    load_i16x8,
    load_i16x16,
    load_i32x8,
    load_two_i8x16,
    load_u32,
    lookup16,
    low_half_i8,
    low_half_i16,
    low_half_i32,
    maddubs,
    maddubs_128,
    maddwd,
    maddwd_128,
    maddwd_folded,
    max_f32x8,
    mul,
    or_,
    pair0,
    pair7,
    pairs_i16,
    pause,
    rolled,
    round_to_f16,
    round_to_i32,
    shift_lanes_left,
    shift_lanes_right,
    shift_left,
    shift_left_i32,
    shift_right,
    splat_f32x8,
    splat_i8x32,
    splat_i16x16,
    splat_i32x8,
    store_f16,
    store_f16x8,
    store_f32,
    store_f32x8,
    store_four_i8,
    store_four_i16,
    store_i8x16,
    store_i8x32,
    store_i16x8,
    store_i16x16,
    store_i32,
    store_i32x4,
    store_i32x8,
    store_i64,
    sub,
    sum_f32x8,
    sum_i32x4,
    sum_i32x8,
    sums_of_16_u6,
    sums_of_32_i8,
    sums_of_32_u4,
    sums_of_32_u5,
    transpose_store,
    twice_i8x16,
    widen_8_bytes,
    widen_i8x16,
    widen_u8x16,
    with_sign_of,
    xor,
)

B, C, NIBBLES, X, Y, Z, HALVES = 32, 64, 96, 128, 160, 192, 224


@kernel
def lanes(at, out, _):
    """Lane-wise integers."""
    a, b = load_i8x32(at), load_i8x32(at + B)
    store_i8x32(out, add(a, b))
    store_i8x32(out + 32, sub(a, b))
    store_i16x16(out + 64, mul(load_i16x16(at), load_i16x16(at + B)))
    store_i8x32(out + 96, and_(a, b))
    store_i8x32(out + 128, or_(a, b))
    store_i8x32(out + 160, xor(a, b))
    store_i8x32(out + 192, shift_right(a, 3))
    store_i8x32(out + 224, shift_left(a, 5))
    store_i16x16(out + 256, shift_lanes_left(load_i16x16(at), 3))
    store_i32x8(out + 288, shift_lanes_right(load_i32x8(at), 7))
    store_i32x8(out + 320, shift_left_i32(load_i32x8(at), 9))
    store_i8x32(out + 352, bytes_equal(and_(a, splat_i8x32(3)), and_(b, splat_i8x32(3))))
    store_i8x32(out + 384, abs_i8(a))
    store_i8x32(out + 416, with_sign_of(b, a))
    store_i8x32(out + 448, lookup16(b, load_i8x32(at + NIBBLES)))


@kernel
def products(at, out, _):
    """Products and sums of neighbours."""
    a, b = load_i8x32(at), load_i8x32(at + B)
    small = and_(a, splat_i8x32(127))
    store_i16x16(out, maddubs(small, b))
    store_i16x8(out + 32, maddubs_128(low_half_i8(small), low_half_i8(b)))
    store_i32x8(out + 64, maddwd(load_i16x16(at), load_i16x16(at + B)))
    store_i32x4(out + 96, maddwd_128(load_i16x8(at), load_i16x8(at + B)))
    store_i16x16(out + 128, fold_fours(load_i16x16(at), load_i16x16(at + B)))
    store_i16x16(out + 160, fold_twos(load_i16x16(at), load_i16x16(at + B)))
    store_i32x8(out + 192, fold_neighbours(load_i32x8(at), load_i32x8(at + B)))
    store_i32x8(out + 224, add_halves(load_i32x8(at), load_i32x8(at + B)))
    store_i32(out + 256, sum_i32x8(load_i32x8(at)))
    store_i32(out + 288, sum_i32x4(low_half_i32(load_i32x8(at))))
    store_i16x16(out + 320, splat_i16x16(-3))
    store_i32x8(out + 352, splat_i32x8(-70000))
    store_i16x16(out + 384, pairs_i16(-8, 5))
    store_i16x16(out + 416, in_order(load_i16x16(at)))
    nibbles = maddubs(and_(a, splat_i8x32(15)), b)
    keep_order()
    store_i32(out + 448, sum_i32x8(maddwd_folded(splat_i16x16(-63), nibbles)))
    store_i32x8(out + 480, add_fours(load_i32x8(at + C), a, b))


@kernel
def group_sums(at, out, _):
    """Sums of products of whole groups; activations are odd, and so never -128."""
    a, b, c, one = load_i8x32(at), load_i8x32(at + B), load_i8x32(at + C), splat_i8x32(1)
    x, y, z = or_(a, one), or_(b, one), or_(c, one)
    four, five, six = splat_i8x32(15), splat_i8x32(31), splat_i8x32(63)
    fours = sums_of_32_u4(and_(a, four), and_(b, four), and_(c, four), high_nibbles(a), y, z, x, y)
    store_i32x8(out, join_i32(fours, sums_of_32_i8(a, b, c, a, y, z, x, y)))
    fives = sums_of_32_u5(and_(a, five), and_(b, five), and_(c, five), and_(a, five), y, z, x, y)
    store_i32x8(out + 32, join_i32(fives, sums_of_16_u6(and_(a, six), and_(b, six), y, z)))


@kernel
def waiting(at, out, _):
    """The counter before and after a spin."""
    store_i64(out, cycles())
    pause()
    store_i64(out + 8, cycles())


@kernel
def placements(at, out, _):
    """Fixed choices of lanes, widening and loads that repeat."""
    words, shorts, sixteen = load_i32x8(at), load_i16x8(at), load_i8x16(at)
    store_i8x32(out, broadcast_4_bytes(at + 3))
    store_i8x32(out + 32, broadcast_16_bytes(at + 5))
    store_i8x32(out + 64, broadcast_two_4_bytes(at + 1, at + 9))
    store_i32x8(out + 96, broadcast_i32(at + 7))
    store_i8x32(out + 128, load_two_i8x16(at + 1, at + B + 1))
    store_i16x16(out + 160, lane0(shorts))
    store_i16x16(out + 192, lane7(shorts))
    store_i16x16(out + 224, pair0(load_i16x16(at)))
    store_i16x16(out + 256, pair7(load_i16x16(at)))
    store_i16x16(out + 288, half_lane0(load_i16x16(at)))
    store_i16x16(out + 320, half_lane5(load_i16x16(at)))
    store_i8x16(out + 352, high_half_i8(load_i8x32(at)))
    store_i16x8(out + 384, low_half_i16(load_i16x16(at)))
    store_i16x8(out + 416, high_half_i16(load_i16x16(at)))
    store_i32x4(out + 448, high_half_i32(words))
    store_i8x32(out + 480, twice_i8x16(sixteen))
    store_i16x16(out + 512, each_twice_i16x8(shorts))
    store_i8x16(out + 544, even_then_odd(sixteen))
    store_i8x32(out + 576, join_i8(sixteen, load_i8x16(at + B)))
    store_i32x8(out + 608, i32x8_of_i32x4(low_half_i32(words)))
    store_i16x8(out + 640, widen_8_bytes(load_u32(at), load_u32(at + 4)))
    store_i8x16(out + 672, four_u32(load_u32(at + 12), load_u32(at + 8), load_u32(at + 4), load_u32(at)))
    store_i16x16(out + 704, widen_i8x16(sixteen))
    store_i16x16(out + 736, widen_u8x16(sixteen))
    store_i32x8(out + 768, i32_of_i16x8(shorts))
    store_i16x16(out + 800, i16_of_i8(load_i8x32(at)))
    store_i8x32(out + 832, fifth_bits(broadcast_4_bytes(at)))
    store_i8x32(out + 864, fifth_bits_low(broadcast_two_4_bytes(at, at + 4)))
    store_i8x32(out + 896, fifth_bits_high(broadcast_two_4_bytes(at, at + 4)))
    store_four_i8(out + 928, 4, words)
    store_four_i16(out + 936, 8, words)
    store_i64(out + 960, rolled(77))


@kernel
def floats(at, out, _):
    """Lane-wise floats, conversions and sums."""
    x, y, z = load_f32x8(at + X), load_f32x8(at + Y), load_f32x8(at + Z)
    store_f32x8(out, fadd(x, y))
    store_f32x8(out + 32, fsub(x, y))
    store_f32x8(out + 64, fmul(x, y))
    store_f32x8(out + 96, fdiv(x, y))
    store_f32x8(out + 128, fma(x, y, z))
    store_f32x8(out + 160, fmax(x, y))
    store_f32x8(out + 192, fmin(x, y))
    store_f32x8(out + 224, fabs(x))
    store_f32x8(out + 256, f32_of_i32x8(load_i32x8(at)))
    store_i32x8(out + 288, round_to_i32(fmul(x, splat_f32x8(1000.0))))
    store_f32x8(out + 320, load_i8x8_as_f32(at))
    store_f32(out + 352, sum_f32x8(x))
    store_f32(out + 384, max_f32x8(x))


@kernel
def halves(at, out, _):
    """Half precision and bfloat16, read and written."""
    store_f32x8(out, load_f16x8(at + HALVES))
    store_f32x8(out + 32, load_bf16x8(at + HALVES))
    store_f32x8(out + 64, load_f16x8_strided(at + HALVES, 4))
    store_f32(out + 96, load_f16(at + HALVES))
    store_f32(out + 128, load_bf16(at + HALVES))
    store_f16x8(out + 160, load_f32x8(at + X))
    store_f16(out + 192, load_f32(at + X))
    store_f32(out + 224, round_to_f16(load_f32(at + X)))
    store_f32x8(out + 256, first_f32(load_f16x4(at + HALVES)))
    store_f32x8(out + 288, fourth_f32(load_f16x4(at + HALVES)))


@kernel
def transposed(at, out, _):
    """Eight rows of eight 4-byte groups, from 256 bytes."""
    transpose_store(
        out,
        32,
        load_i8x32(at),
        load_i8x32(at + 32),
        load_i8x32(at + 64),
        load_i8x32(at + 96),
        load_i8x32(at + 128),
        load_i8x32(at + 160),
        load_i8x32(at + 192),
        load_i8x32(at + 224),
    )

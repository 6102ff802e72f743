"""Kernels that run each vector intrinsic once: (input address, output address); ``test_simd`` has
the twins.

The input holds 32 random bytes at 0 (a), 32 (b) and 64 (c), 32 numbers from 0 to 15 at 96, eight
small f32 at 128 (x), 160 (y) and 192 (z), and sixteen halves at 224. Each result takes 32 bytes of
the output, in the order of the calls.
"""

from engine import simd as vec
from engine.jit import kernel

B = 32
C = 64
NIBBLES = 96
X = 128
Y = 160
Z = 192
HALVES = 224


@kernel
def lanes(source, out, _):
    """Lane-wise integers."""
    a = vec.load_i8x32(source)
    b = vec.load_i8x32(source + B)
    vec.store_i8x32(out, vec.add(a, b))
    vec.store_i8x32(out + 32, vec.sub(a, b))
    vec.store_i16x16(out + 64, vec.mul(vec.load_i16x16(source), vec.load_i16x16(source + B)))
    vec.store_i8x32(out + 96, vec.and_(a, b))
    vec.store_i8x32(out + 128, vec.or_(a, b))
    vec.store_i8x32(out + 160, vec.xor(a, b))
    vec.store_i8x32(out + 192, vec.shift_right(a, 3))
    vec.store_i8x32(out + 224, vec.shift_left(a, 5))
    vec.store_i16x16(out + 256, vec.shift_lanes_left(vec.load_i16x16(source), 3))
    vec.store_i32x8(out + 288, vec.shift_lanes_right(vec.load_i32x8(source), 7))
    vec.store_i32x8(out + 320, vec.shift_left_i32(vec.load_i32x8(source), 9))
    vec.store_i8x32(out + 352, vec.abs_i8(a))
    vec.store_i8x32(out + 384, vec.with_sign_of(b, a))
    vec.store_i8x32(out + 416, vec.lookup16(b, vec.load_i8x32(source + NIBBLES)))


@kernel
def products(source, out, _):
    """Products and sums of neighbours."""
    a = vec.load_i8x32(source)
    b = vec.load_i8x32(source + B)
    small = vec.and_(a, vec.splat_i8x32(127))
    vec.store_i16x16(out, vec.maddubs(small, b))
    vec.store_i16x16(out + 32, vec.mul_high(vec.load_i16x16(source), vec.load_i16x16(source + B)))
    vec.store_i32x8(out + 64, vec.maddwd(vec.load_i16x16(source), vec.load_i16x16(source + B)))
    vec.store_i32x8(
        out + 96,
        vec.i32x8_of_i32x4(vec.maddwd_128(vec.load_i16x8(source), vec.load_i16x8(source + B))),
    )
    vec.store_i16x16(
        out + 128, vec.fold_fours(vec.load_i16x16(source), vec.load_i16x16(source + B))
    )
    vec.store_i16x16(out + 160, vec.fold_twos(vec.load_i16x16(source), vec.load_i16x16(source + B)))
    vec.store_i32x8(
        out + 192, vec.fold_neighbours(vec.load_i32x8(source), vec.load_i32x8(source + B))
    )
    vec.store_i32x8(out + 224, vec.add_halves(vec.load_i32x8(source), vec.load_i32x8(source + B)))
    vec.store_i32(out + 256, vec.sum_i32x8(vec.load_i32x8(source)))
    vec.store_i32(out + 288, vec.sum_i32x4(vec.low_half_i32(vec.load_i32x8(source))))
    vec.store_i16x16(out + 320, vec.splat_i16x16(-3))
    vec.store_i32x8(out + 352, vec.splat_i32x8(-70000))
    vec.store_i16x16(out + 384, vec.pairs_i16(-8, 5))
    vec.store_i16x16(out + 416, vec.opaque(vec.load_i16x16(source)))
    nibbles = vec.maddubs(vec.and_(a, vec.splat_i8x32(15)), b)
    vec.load_barrier()
    vec.store_i32(out + 448, vec.sum_i32x8(vec.maddwd_folded(vec.splat_i16x16(-63), nibbles)))
    vec.store_i32x8(out + 480, vec.add_fours(vec.load_i32x8(source + C), a, b))


@kernel
def group_sums(source, out, _):
    """Sums of products of whole groups; activations are odd, and so never -128."""
    a = vec.load_i8x32(source)
    b = vec.load_i8x32(source + B)
    c = vec.load_i8x32(source + C)
    ones = vec.splat_i8x32(1)
    x = vec.or_(a, ones)
    y = vec.or_(b, ones)
    z = vec.or_(c, ones)
    four = vec.splat_i8x32(15)
    five = vec.splat_i8x32(31)
    six = vec.splat_i8x32(63)
    fours = vec.sums_of_32_u4(
        vec.and_(a, four), vec.and_(b, four), vec.and_(c, four), vec.high_nibbles(a), y, z, x, y
    )
    vec.store_i32x8(out, vec.join_i32(fours, vec.sums_of_32_i8(a, b, c, a, y, z, x, y)))
    fives = vec.sums_of_32_u5(
        vec.and_(a, five), vec.and_(b, five), vec.and_(c, five), vec.and_(a, five), y, z, x, y
    )
    vec.store_i32x8(
        out + 32, vec.join_i32(fives, vec.sums_of_16_u6(vec.and_(a, six), vec.and_(b, six), y, z))
    )


@kernel
def waiting(source, out, _):
    """The counter before and after a spin."""
    vec.store_i64(out, vec.cycles())
    vec.pause()
    vec.store_i64(out + 8, vec.cycles())


@kernel
def placements(source, out, _):
    """Fixed choices of lanes, widening and loads that repeat."""
    words = vec.load_i32x8(source)
    shorts = vec.load_i16x8(source)
    sixteen = vec.load_i8x16(source)
    a = vec.load_i8x32(source)
    b = vec.load_i8x32(source + B)
    vec.store_i8x32(out, vec.broadcast_4_bytes(source + 3))
    vec.store_i8x32(out + 32, vec.broadcast_16_bytes(source + 5))
    vec.store_i8x32(out + 64, vec.broadcast_two_4_bytes(source + 1, source + 9))
    vec.store_i32x8(out + 96, vec.broadcast_i32(source + 7))
    vec.store_i8x32(out + 128, vec.load_two_i8x16(source + 1, source + B + 1))
    vec.store_i8x32(out + 160, vec.byte_each_4(vec.broadcast_8_bytes(source)))
    vec.store_i8x32(out + 192, vec.word_each_4(vec.broadcast_8_bytes(source)))
    vec.store_i16x16(
        out + 224, vec.interleave_low_i16(vec.load_i16x16(source), vec.load_i16x16(source + B))
    )
    vec.store_i8x32(out + 256, vec.interleave_high_i8(a, b))
    vec.store_i16x16(out + 288, vec.half_lane0(vec.load_i16x16(source)))
    vec.store_i16x16(out + 320, vec.half_lane5(vec.load_i16x16(source)))
    vec.store_i8x32(out + 352, vec.join_i8(vec.high_half_i8(a), sixteen))
    vec.store_i16x8(out + 384, vec.low_half_i16(vec.load_i16x16(source)))
    vec.store_i16x8(out + 416, vec.high_half_i16(vec.load_i16x16(source)))
    vec.store_i8x32(out + 448, vec.even_quads(a, b))
    vec.store_i8x32(out + 480, vec.odd_quads(a, b))
    vec.store_i16x16(out + 512, vec.each_twice_i16x8(shorts))
    vec.store_i8x32(out + 544, vec.join_i8(vec.even_then_odd(sixteen), sixteen))
    vec.store_i8x32(out + 576, vec.join_i8(sixteen, vec.load_i8x16(source + B)))
    vec.store_i32x8(out + 608, vec.i32x8_of_i32x4(vec.low_half_i32(words)))
    vec.store_i16x8(out + 640, vec.widen_8_bytes(vec.load_u32(source), vec.load_u32(source + 4)))
    turned = vec.four_u32(
        vec.load_u32(source + 12),
        vec.load_u32(source + 8),
        vec.load_u32(source + 4),
        vec.load_u32(source),
    )
    vec.store_i8x32(out + 672, vec.join_i8(turned, sixteen))
    vec.store_i16x16(out + 704, vec.widen_i8x16(sixteen))
    vec.store_i16x16(out + 736, vec.widen_u8x16(sixteen))
    vec.store_i32x8(out + 768, vec.i32_of_i16x8(shorts))
    vec.store_i16x16(out + 800, vec.as_i16x16(a))
    vec.store_i8x32(out + 832, vec.bits_as_16(vec.broadcast_4_bytes(source)))
    vec.store_i8x32(out + 864, vec.bits_as_16_low(vec.broadcast_two_4_bytes(source, source + 4)))
    vec.store_i8x32(out + 896, vec.bits_as_16_high(vec.broadcast_two_4_bytes(source, source + 4)))
    vec.store_four_i8(out + 928, 4, words)
    vec.store_four_i16(out + 936, 8, words)
    vec.store_i64(out + 960, vec.rolled(77))


@kernel
def floats(source, out, _):
    """Lane-wise floats, conversions and sums."""
    x = vec.load_f32x8(source + X)
    y = vec.load_f32x8(source + Y)
    z = vec.load_f32x8(source + Z)
    vec.store_f32x8(out, vec.fadd(x, y))
    vec.store_f32x8(out + 32, vec.fsub(x, y))
    vec.store_f32x8(out + 64, vec.fmul(x, y))
    vec.store_f32x8(out + 96, vec.fdiv(x, y))
    vec.store_f32x8(out + 128, vec.fma(x, y, z))
    vec.store_f32x8(out + 160, vec.fmax(x, y))
    vec.store_f32x8(out + 192, vec.fmin(x, y))
    vec.store_f32x8(out + 224, vec.fabs(x))
    vec.store_f32x8(out + 256, vec.f32_of_i32x8(vec.load_i32x8(source)))
    vec.store_i32x8(out + 288, vec.round_to_i32(vec.fmul(x, vec.splat_f32x8(1000.0))))
    vec.store_f32x8(out + 320, vec.load_i8x8_as_f32(source))
    vec.store_f32(out + 352, vec.sum_f32x8(x))
    vec.store_f32(out + 384, vec.max_f32x8(x))


@kernel
def halves(source, out, _):
    """Half precision and bfloat16, read and written."""
    vec.store_f32x8(out, vec.load_f16x8(source + HALVES))
    vec.store_f32x8(out + 32, vec.load_bf16x8(source + HALVES))
    vec.store_f32x8(out + 64, vec.load_f16x8_strided(source + HALVES, 4))
    vec.store_f32(out + 96, vec.load_f16(source + HALVES))
    vec.store_f32(out + 128, vec.load_bf16(source + HALVES))
    vec.store_f32x8(out + 160, vec.halves_of_two(source + HALVES, source + HALVES + 2))
    vec.store_f16(out + 192, vec.load_f32(source + X))
    vec.store_f32(out + 224, vec.round_to_f16(vec.load_f32(source + X)))
    vec.store_f32x8(out + 256, vec.first_f32(vec.load_f16x4(source + HALVES)))
    vec.store_f32x8(out + 288, vec.fourth_f32(vec.load_f16x4(source + HALVES)))


@kernel
def transposed(source, out, _):
    """Eight rows of eight 4-byte groups, from 256 bytes."""
    vec.transpose(out, 32, source, 32)


@kernel
def two_rows(source, out, _):
    """Registers of 512 bits that hold two rows; each result takes 64 bytes of the output."""
    a = vec.load_two_i8x32(source, source + C)
    b = vec.broadcast_32_bytes(source + B)
    first = vec.load_i8x32(source)
    a16 = vec.as_i16x32(a)
    b16 = vec.as_i16x32(b)
    small = vec.and_(a, vec.splat_i8x64(127))
    halves = vec.load_f16x4_of_two(source + HALVES, source + HALVES + 8)
    x = vec.broadcast_f32x16(source + X)
    total = vec.load_i32x16(source)
    vec.store_i8x64(out, a)
    vec.store_i8x64(out + 64, b)
    vec.store_i16x32(out + 128, vec.maddubs_512(small, b))
    vec.store_i32x16(out + 192, vec.maddwd_512(a16, b16))
    vec.store_i32x16(out + 256, vec.add_twos(total, a16, b16))
    vec.store_i8x64(out + 320, vec.each_quarter_twice(first))
    vec.store_i16x32(out + 384, vec.byte0_of_quarters(a))
    vec.store_i16x32(out + 448, vec.byte7_of_quarters(a))
    vec.store_i16x32(out + 512, vec.lane0_of_quarters(a16))
    vec.store_i16x32(out + 576, vec.lane7_of_quarters(a16))
    vec.store_i16x32(out + 640, vec.widen_i8x32(first))
    vec.store_i16x32(out + 704, vec.widen_u8x32(first))
    vec.store_i8x32(out + 768, vec.even_then_odd_of_two(first))
    vec.store_i16x32(
        out + 832, vec.join_i16x16(vec.load_i16x16(source), vec.load_i16x16(source + B))
    )
    vec.store_f32x16(out + 896, vec.first_of_two(halves))
    vec.store_f32x16(out + 960, vec.fourth_of_two(halves))
    vec.store_f32x8(out + 1024, vec.second_of_two_f32x8(halves))
    vec.store_f32x16(out + 1088, x)
    vec.store_f32x8(out + 1152, vec.low_half_f32x16(vec.load_f32x16(source + X)))
    vec.store_f32x8(out + 1216, vec.high_half_f32x16(vec.load_f32x16(source + X)))
    vec.store_i32x8(
        out + 1280,
        vec.add_twos(
            vec.load_i32x8(source + C), vec.load_i16x16(source), vec.load_i16x16(source + B)
        ),
    )


add_bits = vec.with_fifth_bits(2, 4)
entries = vec.table_of_16(tuple(range(-120, 120, 15)))
words_18_apart = vec.strided_words_of_two(18)
words_17_apart = vec.strided_words_of_two(17)


@kernel
def turned_pairs(source, out, _):
    """Registers of 256 bits whose lanes are blocks: four pairs of sixteen bytes, 128 bytes
    apart."""
    a = vec.load_two_i8x16(source, source + 128)
    b = vec.load_two_i8x16(source + 16, source + 144)
    c = vec.load_two_i8x16(source + 32, source + 160)
    d = vec.load_two_i8x16(source + 48, source + 176)
    first, second, third, fourth = vec.turned(a, b, c, d)
    vec.store_i8x32(out, first)
    vec.store_i8x32(out + 32, second)
    vec.store_i8x32(out + 64, third)
    vec.store_i8x32(out + 96, fourth)
    first, second = vec.turned_heads(a, b, c, d)
    vec.store_i8x32(out + 128, first)
    vec.store_i8x32(out + 160, second)
    vec.store_f32x8(out + 192, vec.f32_of_low_f16(vec.load_i8x32(source + HALVES)))
    vec.store_f32x8(out + 224, vec.f32_of_high_f16(vec.load_i8x32(source + HALVES)))
    vec.store_f32x8(out + 256, vec.f32_of_exponents(a))
    nibbles = vec.load_i8x32(source + NIBBLES)
    vec.store_i8x32(out + 288, add_bits(nibbles, a))
    vec.store_i8x32(out + 320, entries(nibbles))


@kernel
def turned_fours(source, out, _):
    """Registers of 512 bits whose lanes are blocks."""
    a = vec.load_four_i8x16(source, source + 64, source + 128, source + 192)
    b = vec.load_four_i8x16(source + 16, source + 80, source + 144, source + 208)
    c = vec.load_four_i8x16(source + 32, source + 96, source + 160, source + 224)
    d = vec.load_four_i8x16(source + 48, source + 112, source + 176, source + 240)
    first, second, third, fourth = vec.turned(a, b, c, d)
    vec.store_i8x64(out, first)
    vec.store_i8x64(out + 64, second)
    vec.store_i8x64(out + 128, third)
    vec.store_i8x64(out + 192, fourth)
    first, second = vec.turned_heads(a, b, c, d)
    vec.store_i8x64(out + 256, first)
    vec.store_i8x64(out + 320, second)
    nibbles = vec.broadcast_32_bytes(source + NIBBLES)
    halves = vec.broadcast_32_bytes(source + HALVES)
    vec.store_f32x16(out + 384, vec.f32_of_low_f16(halves))
    vec.store_f32x16(out + 448, vec.f32_of_high_f16(halves))
    vec.store_f32x16(out + 512, vec.f32_of_exponents(a))
    vec.store_i8x64(out + 576, add_bits(nibbles, a))
    vec.store_i8x64(out + 640, entries(nibbles))
    vec.store_f32x16(out + 704, vec.broadcast_f32x8(source + X))
    vec.store_i32x16(out + 768, vec.as_i32x16(a))
    vec.store_i8x64(out + 832, words_18_apart(source, source + 64))
    vec.store_i8x64(out + 896, words_17_apart(source, source + 64))
    vec.store_i32x16(out + 960, vec.maddwd_512(vec.pairs_i16x32(-8, 0), vec.as_i16x32(a)))


@kernel
def turned_eights(source, out, _):
    """Eight registers of 32 bytes of each of two rows, from 256 bytes a row."""
    results = vec.turned_of_32(
        vec.load_two_i8x32(source, source + 256),
        vec.load_two_i8x32(source + 32, source + 288),
        vec.load_two_i8x32(source + 64, source + 320),
        vec.load_two_i8x32(source + 96, source + 352),
        vec.load_two_i8x32(source + 128, source + 384),
        vec.load_two_i8x32(source + 160, source + 416),
        vec.load_two_i8x32(source + 192, source + 448),
        vec.load_two_i8x32(source + 224, source + 480),
    )
    for k in range(8):
        vec.store_i8x64(out + 64 * k, results[k])

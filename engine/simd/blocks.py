"""Operations that only the block formats of quantised weights need: gathered scales, spread bits,
folds.

Integer results are the same at every level. If a level has an instruction for an operation, it is
named here; else LLVM gets plain IR.
"""

from llvmlite import ir
from numba import types

from engine.machine import level
from engine.simd.arith import in_halves, maddwd_ir, pick, pick_of_two, unary_signature
from engine.simd.memory import read_register, widen_halves
from engine.simd.types import (
    F32,
    I8,
    I16,
    I32,
    I64,
    call,
    f32x4,
    f32x8,
    i8x16,
    i8x32,
    i16x16,
    i16x32,
    i32x4,
    i32x8,
    i32x16,
    lowered,
    read,
    shuffle,
    splat,
    vector_of,
    write,
)


def _half_lane(k):
    @lowered(i16x16(i16x16))
    def half_lane(builder, v):
        """Return one lane of each half, in all lanes of that half."""
        if level.HAS_AVX2 or not level.HAS_SSSE3:
            return shuffle(builder, v, [k] * 8 + [8 + k] * 8)
        lanes = _hidden(builder, ir.Constant(i8x16.ir, [2 * k, 2 * k + 1] * 8))
        cut = [builder.bitcast(half, i8x16.ir) for half in in_halves(builder, v)]
        picked = [
            call(builder, "llvm.x86.ssse3.pshuf.b.128", i8x16.ir, [half, lanes]) for half in cut
        ]
        return builder.bitcast(shuffle(builder, tuple(picked), range(32)), i16x16.ir)

    return half_lane


def _hidden(builder, value, registers="=x,0", has_effect=False):
    """Return the same value, hidden from LLVM; with an effect it also stays in its place in the
    source."""
    identity = ir.InlineAsm(
        ir.FunctionType(value.type, [value.type]), "", registers, side_effect=has_effect
    )
    return builder.call(identity, [value])


half_lane0, half_lane1, half_lane2, half_lane3, half_lane4, half_lane5, half_lane6, half_lane7 = (
    _half_lane(k) for k in range(8)
)
"""Operations that spread lane k of each half over that half."""

even_then_odd = pick(i8x16, i8x16, [*range(0, 16, 2), *range(1, 16, 2)])
"""Bytes 0, 2, ... 14, then 1, 3, ... 15: scales of 16 weights, ready for ``half_lane``."""

halves_in_turn = pick(i16x16, i16x16, [8 * (k % 2) + k // 2 for k in range(16)])
"""Lanes of the lower half and of the upper half in turn."""


@lowered(i32x8(i16x16, i16x16))
def maddwd_folded(builder, scale, products):
    """Compute ``maddwd`` of equal scales with sums small enough to be added in pairs first."""
    if level.HAS_AVX2:
        return call(builder, "llvm.x86.avx2.pmadd.wd", i32x8.ir, [scale, products])
    scale = in_halves(builder, scale)[0]
    (low, high) = in_halves(builder, products)
    folded = maddwd_ir(builder, scale, builder.add(low, high))
    return shuffle(builder, (folded, i32x4.constant([0] * 4)), range(8))


def _fence(builder):
    builder.call(
        ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", side_effect=True), []
    )


@lowered(types.void())
def load_barrier(builder):
    """Let LLVM move no load beyond this point.

    With few registers it would load everything first, and spill.
    """
    if not level.HAS_AVX2:
        _fence(builder)


@lowered(types.void())
def store_barrier(builder):
    """Let LLVM forward no earlier store to a load after this point.

    It would shuffle registers instead of loading.
    """
    _fence(builder)


def _within_halves(register, lanes):
    """Make an operation that chooses the same lanes of a, and of b after them, in each 128-bit
    half."""
    half = register.n // 2
    return pick_of_two(
        register,
        register,
        [
            lane % half + (register.n if lane >= half else 0) + half * k
            for k in range(2)
            for lane in lanes
        ],
    )


interleave_low_i8 = _within_halves(i8x32, [lane for k in range(8) for lane in (k, 16 + k)])
interleave_high_i8 = _within_halves(i8x32, [lane for k in range(8, 16) for lane in (k, 16 + k)])
"""Bytes of a and b in turn, of the lower or upper eight of each half."""
interleave_low_i16 = _within_halves(i16x16, [lane for k in range(4) for lane in (k, 8 + k)])
interleave_high_i16 = _within_halves(i16x16, [lane for k in range(4, 8) for lane in (k, 8 + k)])
"""int16 of a and b in turn, of the lower or upper four of each half."""
words_1323 = _within_halves(i8x32, [4 * word + byte for word in (1, 3, 2, 3) for byte in range(4)])
words_1122 = _within_halves(i8x32, [4 * word + byte for word in (1, 1, 2, 2) for byte in range(4)])
"""Four of a's 32-bit words in each half; b is ignored."""
last_word_of_b = _within_halves(i8x32, [*range(12), *range(28, 32)])
"""Register a, except the last 32-bit word of each half, which is b's."""


@lowered(i8x32(i8x32, i8x32, i8x32, i8x32))
def words_of_four(builder, a, b, c, d):
    """Return, in each half, 32-bit words 0 of a, 1 of b, 2 of c and 3 of d."""
    odd_from_other = [k + (32 if k % 8 >= 4 else 0) for k in range(32)]
    first = shuffle(builder, (a, b), odd_from_other)
    last = shuffle(builder, (c, d), odd_from_other)
    return shuffle(builder, (first, last), [k + (32 if k % 16 >= 8 else 0) for k in range(32)])


join_halves_f32 = pick_of_two(f32x8, f32x8, [0, 1, 2, 3, 12, 13, 14, 15])
"""Lower half of one register and upper half of another."""


def _half_f32(lanes):
    @lowered(f32x8(f32x8))
    def half(builder, v):
        """Return half of a register in the lower half, followed by zeros."""
        return shuffle(builder, (v, f32x8.constant([0.0] * 8)), [*lanes, 8, 9, 10, 11])

    return half


low_half_f32 = _half_f32(range(4))
high_half_f32 = _half_f32(range(4, 8))


@lowered(i8x32(types.intp, types.intp))
def load_two_i8x16(builder, low, high):
    """Load sixteen bytes from each of two addresses as one i8x32."""
    return shuffle(
        builder, (read(builder, low, i8x16.ir), read(builder, high, i8x16.ir)), range(32)
    )


@lowered(i8x32(types.intp, types.intp))
def broadcast_two_4_bytes(builder, low, high):
    """Repeat four bytes from each of two addresses over one half of an i8x32."""
    words = [splat(builder, read(builder, address, I32), i32x8.ir) for address in (low, high)]
    if (
        level.HAS_AVX2
    ):  # two broadcasting loads and a blend; LLVM would gather both words and spread them
        words = [_hidden(builder, word) for word in words]
    return builder.bitcast(shuffle(builder, tuple(words), [0, 1, 2, 3, 12, 13, 14, 15]), i8x32.ir)


@lowered(i8x32(i8x32))
def high_nibbles(builder, v):
    """Return the upper four bits of each byte."""
    return builder.lshr(v, i8x32.constant([4] * 32))


def _make_bits_as_16(lanes):
    @lowered(i8x32(i8x32))
    def bits_as_16(builder, bits):
        """Return 16 in each byte lane whose bit is set among four broadcast bytes, else 0."""
        masked = builder.and_(
            shuffle(builder, bits, lanes), i8x32.constant([1 << (k & 7) for k in range(32)])
        )
        empty = builder.icmp_signed("==", masked, i8x32.constant([0] * 32))
        return builder.select(empty, i8x32.constant([0] * 32), i8x32.constant([16] * 32))

    return bits_as_16


_IN_ORDER = [0] * 8 + [1] * 8 + [18] * 8 + [19] * 8
bits_as_16 = _make_bits_as_16(_IN_ORDER)
"""Bits of one block: all 32 bits; both halves hold its four bytes."""

bits_as_16_low = _make_bits_as_16([0] * 8 + [1] * 8 + [16] * 8 + [17] * 8)
bits_as_16_high = _make_bits_as_16([2] * 8 + [3] * 8 + [18] * 8 + [19] * 8)
"""Bits of two blocks, one in each half: their lower (upper) 16 bits."""


byte_each_4, byte_each_8, byte_each_16 = (
    pick(i8x32, i8x32, [16 * (k // 16) + k // n for k in range(32)]) for n in (4, 8, 16)
)
"""First 8, 4 or 2 bytes of two equal halves, each 4, 8 or 16 times; the bytes may also repeat."""
word_each_4 = pick(i8x32, i8x32, [16 * (k // 16) + 2 * (k // 8) + k % 2 for k in range(32)])
"""First four int16 of two equal halves, each four times."""


@lowered(i8x32(i8x32))
def bits_to_bytes(builder, bits):
    """Return 0xFF in each byte lane whose bit is set among four broadcast bytes, else 0."""
    masks = i8x32.constant([1 << (k & 7) for k in range(32)])
    masked = builder.and_(shuffle(builder, bits, _IN_ORDER), masks)
    return builder.sext(builder.icmp_signed("==", masked, masks), i8x32.ir)


def _read_strided(builder, address, stride, lane_type):
    """Read eight values of an LLVM type, ``stride`` bytes apart, as a vector."""
    addresses = (builder.add(address, builder.mul(stride, I64(k))) for k in range(8))
    return vector_of(
        builder,
        ir.VectorType(lane_type, 8),
        (read(builder, element, lane_type) for element in addresses),
    )


@lowered(f32x8(types.intp, types.int64))
def load_exponents_strided(builder, address, stride):
    """Load eight powers of two, ``stride`` bytes apart: 2^(e - 128) of a byte e, at least 2^-126.

    Smaller ones are multiplied by zeros only, and subnormal numbers would be slow.
    """
    wide = builder.zext(_read_strided(builder, address, stride, I8), i32x8.ir)
    wide = builder.shl(wide, i32x8.constant([23] * 8))
    least = i32x8.constant([1 << 24] * 8)
    clamped = builder.select(builder.icmp_unsigned(">", wide, least), wide, least)
    return builder.bitcast(builder.sub(clamped, i32x8.constant([1 << 23] * 8)), f32x8.ir)


@lowered(types.float32(types.intp))
def load_exponent(builder, address):
    """Return 2^(e - 128) of a byte e as f32, exact."""
    e = builder.zext(read(builder, address, I8), I32)
    normal = builder.shl(builder.sub(e, I32(1)), I32(23))
    subnormal = builder.shl(I32(1 << 21), e)
    return builder.bitcast(
        builder.select(builder.icmp_unsigned("<", e, I32(2)), subnormal, normal), F32
    )


@lowered(i16x16(i16x16))
def lane_of_two(builder, v):
    """Return the first of two repeated int16 in the lower half, and the second in the upper
    half."""
    if level.HAS_AVX2:  # otherwise LLVM would assemble it in three steps
        v = _hidden(builder, v)
    return shuffle(builder, v, [0] * 8 + [9] * 8)


@lowered(lambda v: types.float32(v))
def first_lane(builder, v):
    """Return the first lane of f32."""
    return builder.extract_element(v, I32(0))


@lowered(types.float32(types.int64))
def f32_of_half_bits(builder, bits):
    """Return an f16, given as a number, as f32."""
    return widen_halves(builder, builder.trunc(bits, I16))


odd_words = pick_of_two(i32x8, i32x8, range(1, 16, 2))
"""Odd int32 of two registers."""


@lowered(f32x4(types.intp))
def load_f16x4(builder, address):
    """Load four f16 as f32x4."""
    return widen_halves(builder, read(builder, address, ir.VectorType(I16, 4)))


first_f32, second_f32, third_f32, fourth_f32 = (pick(f32x4, f32x8, [k] * 8) for k in range(4))
"""Operations that spread one of four f32 over eight lanes."""


@lowered(f32x8(types.intp, types.intp))
def load_f16x8_strided(builder, address, stride):
    """Load eight f16, ``stride`` bytes apart, as f32x8."""
    return widen_halves(builder, _read_strided(builder, address, stride, I16))


def _read_halves(builder, *addresses):
    """Load f16 from n addresses as f32x8, each in 8 / n lanes."""
    n = len(addresses)
    bits = vector_of(
        builder, ir.VectorType(I16, n), (read(builder, address, I16) for address in addresses)
    )
    return shuffle(builder, widen_halves(builder, bits), [k * n // 8 for k in range(8)])


@lowered(f32x8(types.intp, types.intp))
def halves_of_two(builder, a, b):
    """Load two f16 as f32, each in four lanes."""
    return _read_halves(builder, a, b)


@lowered(f32x8(*[types.intp] * 4))
def halves_of_four(builder, a, b, c, d):
    """Load four f16 as f32, each in two lanes."""
    return _read_halves(builder, a, b, c, d)


@lowered(f32x8(types.intp, types.intp))
def load_small_floats(builder, a, b):
    """Return half of four 7-bit floats (NVFP4) at each of two addresses: two of each, then two of
    each.

    As f16 they are 2^8 too small; 0x7F means 0.
    """
    bytes_of_both = [read(builder, address, ir.VectorType(I8, 4)) for address in (a, b)]
    bits = builder.zext(
        shuffle(builder, tuple(bytes_of_both), [0, 1, 4, 5, 2, 3, 6, 7]), ir.VectorType(I16, 8)
    )

    def constant(x):
        return ir.Constant(bits.type, [x] * 8)

    halves = builder.shl(builder.and_(bits, constant(0x7F)), constant(7))
    halves = builder.select(builder.icmp_unsigned("==", bits, constant(0x7F)), constant(0), halves)
    return builder.fmul(widen_halves(builder, halves), f32x8.constant([128.0] * 8))


@lowered(f32x8(types.intp))
def spread_scales(builder, address):
    """Load four f32 as lanes 0, 0, 2, 2, 1, 1, 3, 3: scales for the values of
    ``load_small_floats``."""
    return shuffle(builder, read(builder, address, f32x4.ir), [0, 0, 2, 2, 1, 1, 3, 3])


even_quads, odd_quads = (
    pick_of_two(i8x32, i8x32, [first + lane + k for lane in (0, 32, 16, 48) for k in range(8)])
    for first in (0, 8)
)
"""Even or odd groups of eight bytes of two registers, in turn."""


@lowered(i8x32(i16x16, i16x16))
def low_bytes_of(builder, a, b):
    """Return the low bytes of sixteen int16 of a, then of b."""
    return shuffle(builder, (builder.trunc(a, i8x16.ir), builder.trunc(b, i8x16.ir)), range(32))


def _quarter(k):
    @lowered(f32x8(i8x32))
    def quarter(builder, v):
        """Return eight of 32 signed bytes as f32x8."""
        return builder.sitofp(
            builder.sext(shuffle(builder, v, range(8 * k, 8 * k + 8)), i32x8.ir), f32x8.ir
        )

    return quarter


first_bytes_f32, second_bytes_f32, third_bytes_f32, fourth_bytes_f32 = (
    _quarter(k) for k in range(4)
)


def _fold_pair(register, first, second):
    """Make an operation that adds corresponding lanes of two registers.

    Two shuffles and an addition are faster than a horizontal addition.
    """

    @lowered(register(register, register))
    def fold_pair(builder, a, b):
        """Return sums of lanes of a and b, half as many of each, within each 128-bit half."""
        return builder.add(shuffle(builder, (a, b), first), shuffle(builder, (a, b), second))

    return fold_pair


fold_fours = _fold_pair(
    i16x16, [*range(4), *range(16, 20), *range(8, 12), *range(24, 28)],
    [*range(4, 8), *range(20, 24), *range(12, 16), *range(28, 32)],
)  # fmt: skip
"""Fold of int16: eight lanes of a and eight of b in each half become four and four."""

fold_twos = _fold_pair(
    i16x16, [0, 1, 4, 5, 16, 17, 20, 21, 8, 9, 12, 13, 24, 25, 28, 29],
    [2, 3, 6, 7, 18, 19, 22, 23, 10, 11, 14, 15, 26, 27, 30, 31],
)  # fmt: skip
"""Fold of int16: two groups of four lanes in each of a and b become four groups of two."""

fold_neighbours = _fold_pair(i32x8, [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15])
"""Fold of int32: neighbours of a, then of b, within each half."""
add_halves = _fold_pair(i32x8, [*range(4), *range(8, 12)], [*range(4, 8), *range(12, 16)])
"""Fold of int32: a's halves added in the lower half, b's in the upper one."""


def _broadcast_i32(v):
    @lowered(v(types.intp))
    def broadcast(builder, address):
        """Load one int32 into all lanes."""
        return splat(builder, read(builder, address, I32), v.ir)

    return broadcast


broadcast_i32 = _broadcast_i32(i32x8)
broadcast_i32x16 = _broadcast_i32(i32x16)


def _pairs_i16(v):
    @lowered(v(types.int64, types.int64))
    def pairs(builder, even, odd):
        """Return two values in turn, in all int16 lanes."""
        two = vector_of(builder, v.ir, (builder.trunc(value, I16) for value in (even, odd)))
        return shuffle(builder, two, [0, 1] * (v.n // 2))

    return pairs


pairs_i16 = _pairs_i16(i16x16)
pairs_i16x32 = _pairs_i16(i16x32)


def _shift_lanes(operation):
    @lowered(lambda v, n: v(v, types.int64))
    def shift(builder, v, n):
        """Shift each lane by n bits, to the right arithmetically."""
        return getattr(builder, operation)(
            v, splat(builder, builder.trunc(n, v.type.element), v.type)
        )

    return shift


shift_lanes_left = _shift_lanes("shl")
shift_lanes_right = _shift_lanes("ashr")


@lowered(i8x16(*[types.uint32] * 4))
def four_u32(builder, a, b, c, d):
    """Return four u32 as i8x16."""
    return builder.bitcast(vector_of(builder, i32x4.ir, [a, b, c, d]), i8x16.ir)


def _constants(register):
    def of_lanes(lanes):
        """Make an operation that returns fixed lanes: a codebook, held by the module that names
        it."""

        @lowered(register())
        def constant(builder):
            return register.constant(lanes)

        return constant

    return of_lanes


constant_i8x32 = _constants(i8x32)
constant_i16x16 = _constants(i16x16)


def _opaque(builder, v, has_effect):
    """Return the same value; the optimiser cannot look through it."""
    is_512_bits = v.type.count * v.type.element.width == 512
    if not level.HAS_AVX2 or (is_512_bits and not level.HAS_VNNI_512):
        return v
    return _hidden(builder, v, "=v,0" if is_512_bits else "=x,0", has_effect)


@lowered(unary_signature)
def opaque(builder, v):
    """Return the same value, hidden from the optimiser.

    The optimiser would add long sums as trees, which need more registers than there are.
    """
    return _opaque(builder, v, False)


@lowered(unary_signature)
def ordered(builder, v):
    """Return the same value, computed before what follows in the source.

    So the order of the processor's queue is that of the source.
    """
    return _opaque(builder, v, True)


@lowered(types.int64(types.int64))
def rolled(builder, n):
    """Return n, opaque: a loop whose body uses it stays a loop and compiles quickly."""
    return _hidden(builder, n, "=r,0")


@lowered(types.void(*[types.intp] * 4))
def transpose(builder, target, step, source, source_step):
    """Write eight rows of eight 4-byte groups, transposed.

    The eight rows of a group are together; groups are ``step`` apart.

    Args:
        source, source_step: Address of the first row, and bytes from one row to the next.
    """
    addresses = (builder.add(source, builder.mul(source_step, I64(k))) for k in range(8))
    rows = [
        builder.bitcast(read_register(builder, address, i8x32.ir), i32x8.ir)
        for address in addresses
    ]
    pairs = [
        shuffle(builder, (rows[r], rows[r + 1]), m) for r in range(0, 8, 2) for m in _INTERLEAVE_4
    ]
    quads = [
        shuffle(builder, (pairs[r], pairs[r + 2]), m) for r in (0, 1, 4, 5) for m in _INTERLEAVE_8
    ]
    for group in range(8):
        first = group & 4
        lanes = [*range(first, first + 4), *range(8 + first, 12 + first)]
        halves = quads[group & 3], quads[(group & 3) + 4]
        write(
            builder,
            shuffle(builder, halves, lanes),
            builder.add(target, builder.mul(step, I64(group))),
        )


_INTERLEAVE_4 = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
_INTERLEAVE_8 = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]

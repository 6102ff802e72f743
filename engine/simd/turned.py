"""Registers whose 32-bit lanes are blocks: four bytes of each of eight blocks of a row.

Blocks are loaded sixteen bytes at a time, four apart in neighbouring quarters (128 bits), and
turned: sums of four products then fall into the lane of their block without a fold. A register of
256 bits holds one row, one of 512 bits two.
"""

from functools import partial

from llvmlite import ir
from numba import types

from engine.machine import level
from engine.simd.arith import _convert, parts_of
from engine.simd.memory import widen_halves
from engine.simd.types import (
    F32,
    I16,
    I32,
    I64,
    call,
    f32x8,
    f32x16,
    i8x16,
    i8x32,
    i8x64,
    i32x16,
    lowered,
    read,
    shuffle,
)


@lowered(i8x64(*[types.intp] * 4))
def load_four_i8x16(builder, a, b, c, d):
    """Load sixteen bytes from each of four addresses."""
    first, second, third, fourth = (read(builder, address, i8x16.ir) for address in (a, b, c, d))
    low = shuffle(builder, (first, second), range(32))
    high = shuffle(builder, (third, fourth), range(32))
    return shuffle(builder, (low, high), range(64))


@lowered(f32x16(types.intp))
def broadcast_f32x8(builder, address):
    """Return eight f32 from memory in both halves."""
    return shuffle(builder, read(builder, address, f32x8.ir), [*range(8), *range(8)])


def _turned_lanes(n_quarters):
    """Return the choices of 32-bit lanes that turn two and two registers, then their results."""
    starts = range(0, 4 * n_quarters, 4)
    other = 4 * n_quarters
    return [
        [start + first + lane for start in starts for lane in lanes]
        for lanes in ([0, other, 1, other + 1], [0, 1, other, other + 1])
        for first in (0, 2)
    ]


def _turn(builder, registers, count):
    words = ir.VectorType(I32, registers[0].type.count // 4)
    a, b, c, d = (builder.bitcast(v, words) for v in registers)
    low_words, high_words, low_pairs, high_pairs = _turned_lanes(words.count // 4)
    turned = []
    for lanes in (low_words, high_words)[: (count + 1) // 2]:
        first = shuffle(builder, (a, b), lanes)
        last = shuffle(builder, (c, d), lanes)
        turned += [shuffle(builder, (first, last), pairs) for pairs in (low_pairs, high_pairs)]
    result = ir.Constant(ir.ArrayType(registers[0].type, count), ir.Undefined)
    for k, v in enumerate(turned[:count]):
        result = builder.insert_value(result, builder.bitcast(v, registers[0].type), k)
    return result


@lowered(lambda a, b, c, d: types.UniTuple(a, 4)(a, b, c, d))
def turned(builder, a, b, c, d):
    """Return the first 32-bit lanes of each quarter of four registers, then the second, and so
    on."""
    return _turn(builder, (a, b, c, d), 4)


@lowered(lambda a, b, c, d: types.UniTuple(a, 2)(a, b, c, d))
def turned_heads(builder, a, b, c, d):
    """Return only the first two registers of ``turned``."""
    return _turn(builder, (a, b, c, d), 2)


@lowered(types.UniTuple(i8x64, 8)(*[i8x64] * 8))
def turned_of_32(builder, a, b, c, d, e, f, g, h):
    """Return the 32-bit lanes of eight registers, turned: lane k of each half of all eight is the
    half of result k."""
    words = ir.VectorType(I32, 16)
    registers = [builder.bitcast(v, words) for v in (a, b, c, d, e, f, g, h)]
    result = ir.Constant(ir.ArrayType(i8x64.ir, 8), ir.Undefined)
    for half in (0, 4):
        lanes = [start + half + k for start in (0, 16, 8, 24) for k in range(4)]
        pairs = [shuffle(builder, (registers[k], registers[k + 4]), lanes) for k in range(4)]
        four = _turn(builder, [builder.bitcast(v, i8x64.ir) for v in pairs], 4)
        for k in range(4):
            result = builder.insert_value(result, builder.extract_value(four, k), half + k)
    return result


def strided_words_of_two(stride):
    """Make an operation that loads eight int16, ``stride`` bytes apart, from two addresses.

    128 bytes are read from each address. If the stride is odd, an int16 may lack its upper byte.
    """
    words = ir.VectorType(I16, 32)
    lanes = [stride * k // 2 for k in range(8)]

    @lowered(i8x64(types.intp, types.intp))
    def strided_words(builder, first, second):
        """Return int16 in the lower halves of 32-bit lanes, those of an address in half of the
        register."""
        rows = []
        for address in (first, second):
            low = read(builder, address, words)
            high = read(builder, builder.add(address, I64(64)), words)
            rows.append(shuffle(builder, (low, high), lanes))
        wide = builder.zext(shuffle(builder, tuple(rows), range(16)), i32x16.ir)
        if stride % 2:
            shifts = i32x16.constant([8 * (stride * k % 2) for k in range(8)] * 2)
            wide = builder.lshr(wide, shifts)
        return builder.bitcast(wide, i8x64.ir)

    return strided_words


def _f32_of_word(k):
    @lowered(lambda v: (f32x16 if v.n == 64 else f32x8)(v))
    def f32_of_word(builder, v):
        """Return the lower or upper f16 of each 32-bit lane as f32."""
        lanes = builder.bitcast(v, ir.VectorType(I32, v.type.count // 4))
        if k:
            lanes = builder.lshr(lanes, ir.Constant(lanes.type, [16] * lanes.type.count))
        return widen_halves(builder, builder.trunc(lanes, ir.VectorType(I16, lanes.type.count)))

    return f32_of_word


f32_of_low_f16, f32_of_high_f16 = _f32_of_word(0), _f32_of_word(1)


@lowered(lambda v: (f32x16 if v.n == 64 else f32x8)(v))
def f32_of_exponents(builder, v):
    """Return 2^(e - 128) of the lowest byte e of each 32-bit lane, at least 2^-126.

    Smaller ones are multiplied by zeros only, and subnormal numbers would be slow.
    """
    n = v.type.count // 4
    lanes = builder.bitcast(v, ir.VectorType(I32, n))
    shifted = builder.lshr(
        builder.shl(lanes, ir.Constant(lanes.type, [24] * n)), ir.Constant(lanes.type, [1] * n)
    )
    least = ir.Constant(lanes.type, [1 << 24] * n)
    clamped = builder.select(builder.icmp_unsigned(">", shifted, least), shifted, least)
    bits = builder.sub(clamped, ir.Constant(lanes.type, [1 << 23] * n))
    return builder.bitcast(bits, ir.VectorType(F32, n))


def with_fifth_bits(byte, first_bit):
    """Make an operation that adds 16 to the four bytes of a 32-bit lane whose bits are set.

    Args:
        byte, first_bit: Position of the four bits in a lane of the second register.
    """

    @lowered(lambda v, bits: v(v, bits))
    def with_bits(builder, v, bits):
        """Return bytes with 16 added to each whose bit is set."""
        n = v.type.count
        spread = shuffle(builder, bits, [k // 4 * 4 + byte for k in range(n)])
        masks = ir.Constant(v.type, [1 << first_bit + k % 4 for k in range(n)])
        is_clear = builder.icmp_signed(
            "==", builder.and_(spread, masks), ir.Constant(v.type, [0] * n)
        )
        return builder.select(is_clear, v, builder.add(v, ir.Constant(v.type, [16] * n)))

    return with_bits


def table_of_16(values):
    """Make an operation that returns, for each byte from 0 to 15, the entry of a table."""

    @lowered(lambda v: v(v))
    def entries(builder, v):
        """Return the entries with the indices v."""

        def table(n):
            return ir.Constant(ir.VectorType(ir.IntType(8), n), list(values) * (n // 16))

        if v.type.count == 64 and level.HAS_VNNI_512:
            return call(builder, "llvm.x86.avx512.pshuf.b.512", v.type, [table(64), v])
        if level.HAS_AVX2:
            return parts_of(
                builder,
                (table(v.type.count), v),
                256,
                partial(call, builder, "llvm.x86.avx2.pshuf.b", i8x32.ir),
            )
        result = ir.Constant(v.type, [0] * v.type.count)
        for k in range(16):
            is_entry = builder.icmp_signed("==", v, ir.Constant(v.type, [k] * v.type.count))
            entry = ir.Constant(v.type, [values[k]] * v.type.count)
            result = builder.select(is_entry, entry, result)
        return result

    return entries


as_i32x16 = _convert(i8x64, i32x16, "bitcast")

"""Registers of 512 bits that hold the same part of two rows, one in each half.

Kernels use them where the processor has AVX-512 with VNNI; elsewhere LLVM divides them, with the
same results. "Quarters" are the 128-bit parts of a register: the first two belong to one row.
"""

from llvmlite import ir
from numba import types

from engine.machine import level
from engine.simd.arith import maddubs_ir, maddwd_ir, pick, pick_of_two
from engine.simd.memory import widen_halves
from engine.simd.types import (
    F32,
    I16,
    call,
    f32x8,
    f32x16,
    i8x32,
    i8x64,
    i16x16,
    i16x32,
    i32x16,
    lowered,
    read,
    shuffle,
    splat,
)


@lowered(i8x64(types.intp, types.intp))
def load_two_i8x32(builder, first, second):
    """Load 32 bytes from each of two addresses."""
    return shuffle(
        builder, (read(builder, first, i8x32.ir), read(builder, second, i8x32.ir)), range(64)
    )


@lowered(i8x64(types.intp))
def broadcast_32_bytes(builder, address):
    """Return 32 bytes from memory in both halves."""
    return shuffle(builder, read(builder, address, i8x32.ir), [*range(32), *range(32)])


@lowered(f32x16(types.intp))
def broadcast_f32x16(builder, address):
    """Return a f32 from memory in all lanes."""
    return splat(builder, read(builder, address, F32), f32x16.ir)


@lowered(f32x8(types.intp, types.intp))
def load_f16x4_of_two(builder, first, second):
    """Load four f16 from each of two addresses as f32x8."""
    four = ir.VectorType(I16, 4)
    bits = shuffle(builder, (read(builder, first, four), read(builder, second, four)), range(8))
    return widen_halves(builder, bits)


first_of_two, second_of_two, third_of_two, fourth_of_two = (
    pick(f32x8, f32x16, [k] * 8 + [4 + k] * 8) for k in range(4)
)
"""Operations that spread one of the four f32 of each row over that row's half."""
second_of_two_f32x8 = pick(f32x8, f32x8, [1] * 4 + [5] * 4)
"""Second of the four f32 of each row, in four lanes."""

join_i16x16 = pick_of_two(i16x16, i16x32, range(32))
even_then_odd_of_two = pick(
    i8x32, i8x32, [16 * half + k for half in (0, 1) for k in (*range(0, 16, 2), *range(1, 16, 2))]
)
"""Even bytes, then odd ones, of each half: scales of 16 weights, ready to be widened."""
low_half_f32x16 = pick(f32x16, f32x8, range(8))
high_half_f32x16 = pick(f32x16, f32x8, range(8, 16))
each_quarter_twice = pick(i8x32, i8x64, [*range(16), *range(16), *range(16, 32), *range(16, 32)])
"""Both halves of a register, each in two quarters."""


def _widen(operation):
    @lowered(i16x32(i8x32))
    def widen(builder, v):
        """Widen bytes to int16."""
        return getattr(builder, operation)(v, i16x32.ir)

    return widen


widen_i8x32 = _widen("sext")
widen_u8x32 = _widen("zext")


@lowered(i16x32(i8x64, i8x64))
def maddubs_512(builder, a, b):
    """Compute ``maddubs`` of 64 bytes."""
    if level.HAS_VNNI_512:
        return call(builder, "llvm.x86.avx512.pmaddubs.w.512", i16x32.ir, [a, b])
    return maddubs_ir(builder, a, b)


@lowered(lambda total, a, b: total(total, a, b))
def add_twos(builder, total, a, b):
    """Add signed 16-bit products to the total, two neighbours to each int32."""
    if level.HAS_VNNI_512 if total.type == i32x16.ir else level.HAS_VNNI:
        # The operands' types before LLVM 22, which still takes them.
        words = [total, *(builder.bitcast(v, total.type) for v in (a, b))]
        return call(builder, f"llvm.x86.avx512.vpdpwssd.{32 * total.type.count}", total.type, words)
    return builder.add(total, maddwd_ir(builder, a, b))


def _byte_of_quarters(k):
    lanes = [lane for quarter in range(4) for lane in [16 * quarter + k, 64] * 8]

    @lowered(i16x32(i8x64))
    def byte_of_quarters(builder, v):
        """Return one byte of each quarter, unsigned, in all int16 lanes of that quarter."""
        return builder.bitcast(shuffle(builder, (v, i8x64.constant([0] * 64)), lanes), i16x32.ir)

    return byte_of_quarters


(
    byte0_of_quarters,
    byte1_of_quarters,
    byte2_of_quarters,
    byte3_of_quarters,
    byte4_of_quarters,
    byte5_of_quarters,
    byte6_of_quarters,
    byte7_of_quarters,
) = (_byte_of_quarters(k) for k in range(8))

(
    lane0_of_quarters,
    lane1_of_quarters,
    lane2_of_quarters,
    lane3_of_quarters,
    lane4_of_quarters,
    lane5_of_quarters,
    lane6_of_quarters,
    lane7_of_quarters,
) = (
    pick(i16x32, i16x32, [lane for quarter in range(4) for lane in [8 * quarter + k] * 8])
    for k in range(8)
)
"""Operations that spread one int16 of each quarter over that quarter."""

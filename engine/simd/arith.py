"""Arithmetic on vector registers.

Lane-wise operations are plain LLVM IR; the few that only a processor's own instruction does well
(``maddubs``, ``maddwd``, ``fma``, ``lookup16``) are lowered per level, with the same integer results at every level.
"""

from functools import partial

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.machine import level
from engine.simd.types import (
    I32,
    I64,
    SCALAR,
    call,
    f32x4,
    f32x8,
    f32x16,
    i8x16,
    i8x32,
    i8x64,
    i16x8,
    i16x16,
    i16x32,
    i32x4,
    i32x8,
    i32x16,
    shuffle,
)


def _binary(operation):
    @intrinsic
    def binary(typingctx, a, b):
        """Lane-wise operation on two registers of one type, no fast-math flags."""

        def emit(context, builder, signature, args):
            operate = getattr(builder, operation)
            if a.is_split:
                return _halves(builder, args, lambda cut: operate(*cut))
            return operate(*args)

        return a(a, a), emit

    return binary


add, sub, mul = _binary("add"), _binary("sub"), _binary("mul")
and_, or_, xor = _binary("and_"), _binary("or_"), _binary("xor")
fadd, fsub, fmul, fdiv = _binary("fadd"), _binary("fsub"), _binary("fmul"), _binary("fdiv")


@intrinsic
def fmax(typingctx, a, b):
    """Lane-wise larger of two; b where a is NaN."""

    def emit(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return a(a, a), emit


@intrinsic
def fmin(typingctx, a, b):
    """Lane-wise smaller of two; b where a is NaN."""

    def emit(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered("<", *args), *args)

    return a(a, a), emit


@intrinsic
def fabs(typingctx, a):
    """Lane-wise magnitude."""

    def emit(context, builder, signature, args):
        return call(builder, f"llvm.fabs.v{a.n}f32", a.ir, args)

    return a(a), emit


@intrinsic
def fma(typingctx, a, b, c):
    """a * b + c for f32 registers or scalars: one rounding where the processor has FMA, two where not."""
    scalar = not hasattr(a, "ir")

    def emit(context, builder, signature, args):
        if not level.HAS_FMA:
            return builder.fadd(builder.fmul(args[0], args[1]), args[2])
        name = "llvm.fma.f32" if scalar else f"llvm.fma.v{a.n}f32"
        return call(builder, name, args[0].type, args)

    return a(a, a, a), emit


def _splat_ir(builder, scalar, v):
    one = builder.insert_element(ir.Constant(v.ir, ir.Undefined), scalar, ir.Constant(I32, 0))
    return shuffle(builder, one, [0] * v.n)


def _splat(v):
    @intrinsic
    def splat(typingctx, x):
        """The same value in every lane."""
        return v(SCALAR[v.lane]), lambda context, builder, signature, args: _splat_ir(builder, args[0], v)

    return splat


splat_i8x32, splat_i8x16 = _splat(i8x32), _splat(i8x16)
splat_i16x16, splat_i16x32 = _splat(i16x16), _splat(i16x32)
splat_i32x8, splat_i32x4 = _splat(i32x8), _splat(i32x4)
splat_f32x8, splat_f32x4 = _splat(f32x8), _splat(f32x4)
splat_i32x16, splat_f32x16 = _splat(i32x16), _splat(f32x16)


@intrinsic
def splat_like(typingctx, v, x):
    """The same value in every lane of a register like v."""
    return v(v, SCALAR[v.lane]), lambda context, builder, signature, args: _splat_ir(builder, args[1], v)


def _broadcast_4(v, lanes):
    @intrinsic
    def broadcast(typingctx, address):
        """Four bytes from memory, repeated over a register of bytes."""

        def emit(context, builder, signature, args):
            four = builder.load(builder.inttoptr(args[0], I32.as_pointer()))
            four.align = 1
            return builder.bitcast(_splat_ir(builder, four, lanes), v.ir)

        return v(types.intp), emit

    return broadcast


broadcast_4_bytes, broadcast_4_bytes_64 = _broadcast_4(i8x32, i32x8), _broadcast_4(i8x64, i32x16)


@intrinsic
def broadcast_8_bytes(typingctx, address):
    """Eight bytes from memory, repeated over an i8x32."""

    def emit(context, builder, signature, args):
        eight = builder.load(builder.inttoptr(args[0], I64.as_pointer()))
        eight.align = 1
        one = builder.insert_element(ir.Constant(ir.VectorType(I64, 4), ir.Undefined), eight, ir.Constant(I32, 0))
        return builder.bitcast(shuffle(builder, one, [0] * 4), i8x32.ir)

    return i8x32(types.intp), emit


@intrinsic
def broadcast_16_bytes(typingctx, address):
    """Sixteen bytes from memory, twice, as an i8x32."""

    def emit(context, builder, signature, args):
        half = builder.load(builder.inttoptr(args[0], i8x16.ir.as_pointer()))
        half.align = 1
        return shuffle(builder, half, [*range(16), *range(16)])

    return i8x32(types.intp), emit


def _shift(operation):
    @intrinsic
    def shift(typingctx, v, n):
        """Shift 16-bit groups by n bits; for byte registers mask afterwards, bits cross byte borders."""
        words = ir.VectorType(ir.IntType(16), v.n // 2 if v.lane == "i8" else v.n)

        def emit(context, builder, signature, args):
            count = builder.trunc(args[1], ir.IntType(16))
            one = builder.insert_element(ir.Constant(words, ir.Undefined), count, ir.Constant(I32, 0))
            counts = shuffle(builder, one, [0] * words.count)
            moved = getattr(builder, operation)(builder.bitcast(args[0], words), counts)
            return builder.bitcast(moved, v.ir)

        return v(v, types.int64), emit

    return shift


shift_right, shift_left = _shift("lshr"), _shift("shl")


@intrinsic
def shift_left_i32(typingctx, v, n):
    """Shift 32-bit lanes left by n bits."""

    def emit(context, builder, signature, args):
        return builder.shl(args[0], _splat_ir(builder, builder.trunc(args[1], I32), i32x8))

    return i32x8(i32x8, types.int64), emit


@intrinsic
def bytes_equal(typingctx, a, b):
    """0xFF in each byte lane where a and b agree, 0 elsewhere."""

    def emit(context, builder, signature, args):
        return builder.sext(builder.icmp_signed("==", *args), a.ir)

    return a(a, a), emit


@intrinsic
def bytes_above(typingctx, a, b):
    """0xFF in each byte lane where a is greater than b, both signed, 0 elsewhere."""

    def emit(context, builder, signature, args):
        return builder.sext(builder.icmp_signed(">", *args), a.ir)

    return a(a, a), emit


@intrinsic
def abs_i8(typingctx, v):
    """Lane-wise magnitude of signed bytes; -128 stays (as 128 unsigned)."""

    def emit(context, builder, signature, args):
        return call(builder, f"llvm.abs.v{v.n}i8", v.ir, [args[0], ir.Constant(ir.IntType(1), 0)])

    return v(v), emit


@intrinsic
def abs_i32(typingctx, v):
    """Magnitudes; the lowest number stays as it is."""

    def emit(context, builder, signature, args):
        return builder.select(builder.icmp_signed("<", args[0], i32x8.constant([0] * 8)), builder.neg(args[0]), args[0])

    return i32x8(i32x8), emit


@intrinsic
def with_sign_of(typingctx, y, w):
    """y with its sign turned where w is negative, 0 where w is 0 (byte lanes)."""

    def emit(context, builder, signature, args):
        if level.HAS_AVX2 and y is i8x32:
            return call(builder, "llvm.x86.avx2.psign.b", y.ir, args)
        if level.HAS_SSSE3:
            return _halves(builder, args, lambda low: call(builder, "llvm.x86.ssse3.psign.b.128", i8x16.ir, low))
        zero = y.constant([0] * y.n)
        turned = builder.select(builder.icmp_signed("<", args[1], zero), builder.sub(zero, args[0]), args[0])
        return builder.select(builder.icmp_signed("==", args[1], zero), zero, turned)

    return y(y, y), emit


def _halves(builder, arguments, operate):
    """Apply a 128-bit operation to each 128 bits of the arguments."""
    kind = arguments[0].type
    if kind.count * kind.element.width == 128:
        return operate(list(arguments))
    halves = zip(*(_in_halves(builder, a) for a in arguments), strict=True)
    parts = [_halves(builder, list(cut), operate) for cut in halves]
    return shuffle(builder, tuple(parts), range(2 * parts[0].type.count))


def _in_halves(builder, v):
    half = v.type.count // 2
    return [shuffle(builder, v, range(first, first + half)) for first in (0, half)]


def _whole_or_halves(builder, arguments, whole, half):
    """An instruction whose result is like its arguments: the 256-bit one where there is AVX2, else the 128-bit one."""
    if level.HAS_AVX2:
        return call(builder, whole, arguments[0].type, arguments)
    return _halves(builder, arguments, lambda cut: call(builder, half, cut[0].type, cut))


def _pairs_added(builder, product, n):
    even, odd = (shuffle(builder, product, range(k, n, 2)) for k in range(2))
    return builder.add(even, odd)


def _widened_product(builder, args, first_extend, wide):
    return builder.mul(getattr(builder, first_extend)(args[0], wide), builder.sext(args[1], wide))


def _neon(builder, name, result, *arguments):
    return call(builder, f"llvm.aarch64.neon.{name}", result.ir, list(arguments))


_WIDER_PAIRS = "saddlp.v4i32.v8i16"
"""Neighbouring int16 lanes added into int32."""


def _neon_pairs(builder, result, registers):
    """Signed products of two registers, neighbours added into lanes of twice the width."""
    kind = f"v{result.n}i{128 // result.n}"
    halves = zip(*(_in_halves(builder, v) for v in registers), strict=True)
    return _neon(builder, f"addp.{kind}", result, *(_neon(builder, f"smull.{kind}", result, *cut) for cut in halves))


def _maddubs(src, dst, native):
    @intrinsic
    def maddubs(typingctx, a, b):
        """Bytes of a (unsigned; signed on ARM64) times signed bytes of b, neighbours added; no sum may exceed int16."""

        def emit(context, builder, signature, args):
            if level.HAS_AVX2 and native:
                return call(builder, native, dst.ir, args)
            if level.HAS_SSSE3:
                return _halves(
                    builder, args, lambda cut: call(builder, "llvm.x86.ssse3.pmadd.ub.sw.128", i16x8.ir, cut)
                )
            if level.HAS_ARM64:
                return _halves(builder, args, partial(_neon_pairs, builder, i16x8))
            wide = ir.VectorType(ir.IntType(16), src.n)
            return _pairs_added(builder, _widened_product(builder, args, "zext", wide), src.n)

        return dst(src, src), emit

    return maddubs


maddubs = _maddubs(i8x32, i16x16, "llvm.x86.avx2.pmadd.ub.sw")
maddubs_128 = _maddubs(i8x16, i16x8, None)


def maddwd_ir(builder, a, b):
    """``maddwd`` of two vectors of either length, for another intrinsic's lowering."""
    if level.HAS_X86:
        return _halves(builder, [a, b], lambda cut: call(builder, "llvm.x86.sse2.pmadd.wd", i32x4.ir, cut))
    if level.HAS_ARM64:
        return _halves(builder, [a, b], partial(_neon_pairs, builder, i32x4))
    wide = ir.VectorType(I32, a.type.count)
    return _pairs_added(builder, _widened_product(builder, [a, b], "sext", wide), a.type.count)


def _maddwd(src, dst, native):
    @intrinsic
    def maddwd(typingctx, a, b):
        """Signed 16-bit products, neighbours added into int32."""

        def emit(context, builder, signature, args):
            if native and (level.HAS_VNNI_512 if dst is i32x16 else level.HAS_AVX2):
                return call(builder, native, dst.ir, args)
            return maddwd_ir(builder, *args)

        return dst(src, src), emit

    return maddwd


maddwd = _maddwd(i16x16, i32x8, "llvm.x86.avx2.pmadd.wd")
maddwd_512 = _maddwd(i16x32, i32x16, "llvm.x86.avx512.pmaddw.d.512")
maddwd_128 = _maddwd(i16x8, i32x4, None)


@intrinsic
def add_fours(typingctx, total, a, b):
    """Bytes of a (unsigned; signed on ARM64) times signed bytes of b, four neighbours added to each int32 of the total.

    Exact for all bytes of a and for b from -127 to 127; far slower than ``maddubs`` on x86 without VNNI.
    """

    def emit(context, builder, signature, args):
        if level.HAS_VNNI_512 if total is i32x16 else level.HAS_VNNI:
            # The operands' types before LLVM 22, which still takes them.
            words = [args[0], *(builder.bitcast(v, total.ir) for v in args[1:])]
            return call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * total.n}", total.ir, words)
        if level.HAS_DOTPROD:
            return _halves(builder, args, lambda cut: _neon(builder, "sdot.v4i32.v16i8", i32x4, *cut))
        if level.HAS_ARM64:
            twos = _halves(builder, args[1:], partial(_neon_pairs, builder, i16x8))
            return builder.add(args[0], _halves(builder, [twos], lambda cut: _neon(builder, _WIDER_PAIRS, i32x4, *cut)))
        wide = ir.VectorType(I32, a.n)
        twos = _pairs_added(builder, _widened_product(builder, args[1:], "zext", wide), a.n)
        return builder.add(args[0], _pairs_added(builder, twos, a.n // 2))

    return total(total, a, b), emit


@intrinsic
def mul_high(typingctx, a, b):
    """Upper 16 bits of the products of unsigned 16-bit lanes; with a power of two, a shift of each lane by its own."""

    def emit(context, builder, signature, args):
        if level.HAS_X86:
            return _whole_or_halves(builder, args, "llvm.x86.avx2.pmulhu.w", "llvm.x86.sse2.pmulhu.w")
        wide = ir.VectorType(I32, 16)
        product = builder.mul(*(builder.zext(v, wide) for v in args))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, [16] * 16)), i16x16.ir)

    return i16x16(i16x16, i16x16), emit


@intrinsic
def lookup16(typingctx, table, index):
    """For each byte of index (0 to 15), the byte of the 16-entry table in the same 128-bit half."""

    def emit(context, builder, signature, args):
        if level.HAS_SSSE3:
            return _whole_or_halves(builder, args, "llvm.x86.avx2.pshuf.b", "llvm.x86.ssse3.pshuf.b.128")
        if level.HAS_ARM64:
            return _halves(builder, args, lambda cut: _neon(builder, "tbl1.v16i8", i8x16, *cut))
        found = i8x32.constant([0] * 32)
        for k in range(16):
            entry = shuffle(builder, args[0], [k] * 16 + [16 + k] * 16)
            hit = builder.icmp_signed("==", args[1], i8x32.constant([k] * 32))
            found = builder.select(hit, entry, found)
        return found

    return i8x32(i8x32, i8x32), emit


def _pick(src, dst, lanes):
    @intrinsic
    def pick(typingctx, v):
        """A fixed choice of lanes."""
        return dst(src), lambda context, builder, signature, args: shuffle(builder, args[0], lanes)

    return pick


_ROWS_IN_TWOS = [[8 * (k // 8) + 4 * half + 2 * (k % 8 // 4) for k in range(32)] for half in range(2)]
words_of_first_rows, words_of_last_rows = (_pick(i16x32, i16x32, lanes) for lanes in _ROWS_IN_TWOS)
"""int16 of the first two or last two of each four rows, which have it twice, in the lanes of ``first_rows_i8``."""


def _above_zeros(half):
    @intrinsic
    def above(typingctx, v):
        """The lower or upper eight bytes of each sixteen, times 256 as int16."""

        def emit(context, builder, signature, args):
            lanes = [64 if k % 2 == 0 else 16 * (k // 16) + 8 * half + k % 16 // 2 for k in range(64)]
            zero = i8x64.constant([0] * 64)
            return builder.bitcast(shuffle(builder, (args[0], zero), lanes), i16x32.ir)

        return i16x32(i8x64), emit

    return above


first_rows_i8, last_rows_i8 = _above_zeros(0), _above_zeros(1)


@intrinsic
def mul_upper(typingctx, a, b):
    """Upper 16 bits of the products of signed 16-bit lanes."""

    def emit(context, builder, signature, args):
        wide = ir.VectorType(I32, a.n)
        product = builder.mul(*(builder.sext(v, wide) for v in args))
        return builder.trunc(builder.ashr(product, ir.Constant(wide, [16] * a.n)), a.ir)

    return a(a, a), emit


@intrinsic
def bytes_in_turn(typingctx, first, last):
    """int16 that fit a signed byte, of two registers: eight of the first, eight of the last, and so on."""

    def emit(context, builder, signature, args):
        if level.HAS_VNNI_512:
            return call(builder, "llvm.x86.avx512.packsswb.512", i8x64.ir, args)
        lanes = [2 * (8 * lane + k) + 64 * half for lane in range(4) for half in (0, 1) for k in range(8)]
        return shuffle(builder, tuple(builder.bitcast(v, i8x64.ir) for v in args), lanes)

    return i8x64(i16x32, i16x32), emit


lane0, lane1, lane2, lane3, lane4, lane5, lane6, lane7 = (_pick(i16x8, i16x16, [k] * 16) for k in range(8))
"""One of eight int16, in all sixteen lanes."""

pair0, pair1, pair2, pair3, pair4, pair5, pair6, pair7 = (
    _pick(i16x16, i16x16, [2 * k] * 8 + [2 * k + 1] * 8) for k in range(8)
)
"""Two neighbouring int16 of sixteen, each in eight lanes: scales of two sub-blocks of 16 weights."""

low_half_i8, high_half_i8 = _pick(i8x32, i8x16, range(16)), _pick(i8x32, i8x16, range(16, 32))
low_half_i16, high_half_i16 = _pick(i16x16, i16x8, range(8)), _pick(i16x16, i16x8, range(8, 16))
low_half_i32, high_half_i32 = _pick(i32x8, i32x4, range(4)), _pick(i32x8, i32x4, range(4, 8))
twice_i8x16 = _pick(i8x16, i8x32, [*range(16), *range(16)])
each_twice_i16x8 = _pick(i16x8, i16x16, [k // 2 for k in range(16)])


@intrinsic
def join_i8(typingctx, low, high):
    """Two i8x16 as one i8x32."""
    return i8x32(i8x16, i8x16), lambda context, builder, signature, args: shuffle(builder, tuple(args), range(32))


@intrinsic
def i32x8_of_i32x4(typingctx, low):
    """Four lanes and four zeros."""

    def emit(context, builder, signature, args):
        return shuffle(builder, (args[0], i32x4.constant([0] * 4)), range(8))

    return i32x8(i32x4), emit


@intrinsic
def widen_8_bytes(typingctx, low, high):
    """Two u32 as eight unsigned bytes, widened to i16x8."""

    def emit(context, builder, signature, args):
        v = ir.Constant(ir.VectorType(I32, 2), ir.Undefined)
        for i in range(2):
            v = builder.insert_element(v, args[i], ir.Constant(I32, i))
        return builder.zext(builder.bitcast(v, ir.VectorType(ir.IntType(8), 8)), i16x8.ir)

    return i16x8(types.uint32, types.uint32), emit


def _convert(src, dst, operation):
    @intrinsic
    def convert(typingctx, v):
        """Lane-wise conversion."""
        return dst(src), lambda context, builder, signature, args: getattr(builder, operation)(args[0], dst.ir)

    return convert


f32_of_i32x16 = _convert(i32x16, f32x16, "sitofp")
f32_of_i32x8 = _convert(i32x8, f32x8, "sitofp")
widen_i8x16, widen_u8x16 = _convert(i8x16, i16x16, "sext"), _convert(i8x16, i16x16, "zext")
i32_of_i16x8 = _convert(i16x8, i32x8, "sext")
i16_of_i8x64 = _convert(i8x64, i16x32, "bitcast")
i16_of_i8 = _convert(i8x32, i16x16, "bitcast")


@intrinsic
def round_to_i32(typingctx, v):
    """Nearest integer, halves to even; lanes must be within 2^22."""

    def emit(context, builder, signature, args):
        magic = v.constant([12582912.0] * v.n)  # 1.5 * 2^23: its unit in the last place is one
        shifted = builder.bitcast(builder.fadd(args[0], magic), ints.ir)
        return builder.sub(shifted, ints.constant([0x4B400000] * v.n))

    ints = _ints_like(v)
    return ints(v), emit


def _ints_like(v):
    return i32x16 if v.n == 16 else i32x8


@intrinsic
def f32_of_i32(typingctx, v):
    """Lane-wise conversion."""
    floats = f32x16 if v.n == 16 else f32x8
    return floats(v), lambda context, builder, signature, args: builder.sitofp(args[0], floats.ir)


@intrinsic
def power_of_two(typingctx, n):
    """2 to the power of each lane, -126 to 127, as f32."""

    def emit(context, builder, signature, args):
        bits = builder.shl(builder.add(args[0], n.constant([127] * n.n)), n.constant([23] * n.n))
        return builder.bitcast(bits, floats.ir)

    floats = f32x16 if n.n == 16 else f32x8
    return floats(n), emit


def _store_fours(bits):
    @intrinsic
    def store_fours(typingctx, address, step, v):
        """Write the low bits of each of eight int32, four values at the address and four ``step`` bytes after it."""

        def emit(context, builder, signature, args):
            for half in range(2):
                four = shuffle(builder, args[2], range(4 * half, 4 * half + 4))
                small = builder.trunc(four, ir.VectorType(ir.IntType(bits), 4))
                at = builder.add(args[0], builder.mul(args[1], ir.Constant(I64, half)))
                builder.store(small, builder.inttoptr(at, small.type.as_pointer())).align = 1
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, i32x8), emit

    return store_fours


store_four_i8, store_four_i16 = _store_fours(8), _store_fours(16)


def _store_apart(n_apart):
    @intrinsic
    def store_apart(typingctx, address, step, v):
        """Write the low bytes of eight int32: value k goes k mod n steps and k div n bytes after the address."""

        def emit(context, builder, signature, args):
            small = builder.trunc(args[2], ir.VectorType(ir.IntType(8), 8))
            for k in range(8):
                step = builder.mul(args[1], ir.Constant(I64, k % n_apart))
                at = builder.add(builder.add(args[0], step), ir.Constant(I64, k // n_apart))
                one = builder.extract_element(small, ir.Constant(I32, k))
                builder.store(one, builder.inttoptr(at, one.type.as_pointer())).align = 1
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, i32x8), emit

    return store_apart


store_bytes_apart, store_fours_apart = _store_apart(8), _store_apart(4)


@intrinsic
def load_i8x8_as_f32(typingctx, address):
    """Eight signed bytes as f32x8."""

    def emit(context, builder, signature, args):
        small = builder.load(builder.inttoptr(args[0], ir.VectorType(ir.IntType(8), 8).as_pointer()))
        small.align = 1
        return builder.sitofp(builder.sext(small, i32x8.ir), f32x8.ir)

    return f32x8(types.intp), emit


@intrinsic
def load_nibbles_as_f32(typingctx, address, shift):
    """Four bits of each of eight bytes, the lower ones (shift 0) or the upper ones (4), as signed numbers in f32x8."""

    def emit(context, builder, signature, args):
        small = builder.load(builder.inttoptr(args[0], ir.VectorType(ir.IntType(8), 8).as_pointer()))
        small.align = 1
        up = builder.sub(ir.Constant(I32, 28), builder.trunc(args[1], I32))
        placed = builder.shl(builder.zext(small, i32x8.ir), _splat_ir(builder, up, i32x8))
        return builder.sitofp(builder.ashr(placed, i32x8.constant([28] * 8)), f32x8.ir)

    return f32x8(types.intp, types.int64), emit


def _butterfly(stride):
    @intrinsic
    def butterfly(typingctx, v):
        """Sums and differences of the lanes that are ``stride`` apart: each sum in the first of the two."""

        def emit(context, builder, signature, args):
            first = shuffle(builder, args[0], [lane & ~stride for lane in range(8)])
            second = shuffle(builder, args[0], [lane | stride for lane in range(8)])
            both = builder.fadd(first, second), builder.fsub(first, second)
            return shuffle(builder, both, [lane + (8 if lane & stride else 0) for lane in range(8)])

        return f32x8(f32x8), emit

    return butterfly


butterfly_1, butterfly_2, butterfly_4 = _butterfly(1), _butterfly(2), _butterfly(4)


def _fold(builder, vector, operate):
    """Combine halves until one lane is left: the same tree at every level."""
    n = vector.type.count
    while n > 1:
        n //= 2
        vector = operate(shuffle(builder, vector, range(n)), shuffle(builder, vector, range(n, 2 * n)))
    return builder.extract_element(vector, ir.Constant(I32, 0))


def _reduce(v, operation):
    @intrinsic
    def reduce(typingctx, x):
        """Combine all lanes into one scalar."""

        def emit(context, builder, signature, args):
            def operate(a, b):
                if operation == "fmax":
                    return builder.select(builder.fcmp_ordered(">", a, b), a, b)
                return getattr(builder, operation)(a, b)

            return _fold(builder, args[0], operate)

        return SCALAR[v.lane](v), emit

    return reduce


sum_f32x8, sum_f32x4, max_f32x8 = _reduce(f32x8, "fadd"), _reduce(f32x4, "fadd"), _reduce(f32x8, "fmax")
sum_i32x8, sum_i32x4 = _reduce(i32x8, "add"), _reduce(i32x4, "add")


@intrinsic
def transpose_store(typingctx, address, step, r0, r1, r2, r3, r4, r5, r6, r7):
    """Write eight rows of eight 4-byte groups, transposed: eight rows of one group together, groups ``step`` apart."""

    def emit(context, builder, signature, args):
        rows = [builder.bitcast(row, i32x8.ir) for row in args[2:]]
        pairs = [shuffle(builder, (rows[r], rows[r + 1]), m) for r in range(0, 8, 2) for m in _INTERLEAVE_4]
        quads = [shuffle(builder, (pairs[r], pairs[r + 2]), m) for r in (0, 1, 4, 5) for m in _INTERLEAVE_8]
        for half in range(2):
            for k in range(4):
                lanes = [*range(4 * half, 4 * half + 4), *range(8 + 4 * half, 12 + 4 * half)]
                group = shuffle(builder, (quads[k], quads[k + 4]), lanes)
                at = builder.add(args[0], builder.mul(args[1], ir.Constant(I64, 4 * half + k)))
                builder.store(group, builder.inttoptr(at, i32x8.ir.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, *[i8x32] * 8), emit


_INTERLEAVE_4 = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
_INTERLEAVE_8 = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]

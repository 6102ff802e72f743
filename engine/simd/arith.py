"""Arithmetic on vector registers.

Lane-wise operations are plain LLVM IR. The few operations that only a processor's own instruction
does well (``maddubs``, ``maddwd``, ``fma``, ``lookup16``) are lowered for each level, with the same
integer results at every level.
"""

from functools import partial

from llvmlite import ir
from numba import types

from engine.machine import level
from engine.simd.types import (
    F32,
    I8,
    I16,
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
    is_split,
    lowered,
    read,
    shuffle,
    splat,
    vector_of,
    write,
)


def unary_signature(register):
    """Return the signature of an operation on one register, with a result of the same type."""
    return register(register)


def binary_signature(register, second):
    """Return the signature of an operation on two registers of one type."""
    return register(register, register)


def _binary(operation):
    @lowered(binary_signature)
    def binary(builder, a, b):
        """Compute an operation of two registers lane by lane, without fast-math flags."""
        operate = getattr(builder, operation)
        return (
            _halves(builder, (a, b), lambda cut: operate(*cut))
            if is_split(a.type)
            else operate(a, b)
        )

    return binary


add = _binary("add")
sub = _binary("sub")
mul = _binary("mul")
and_ = _binary("and_")
or_ = _binary("or_")
xor = _binary("xor")
fadd = _binary("fadd")
fsub = _binary("fsub")
fmul = _binary("fmul")
fdiv = _binary("fdiv")


@lowered(binary_signature)
def fmax(builder, a, b):
    """Return the larger of two, lane by lane; b if a is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@lowered(binary_signature)
def fmin(builder, a, b):
    """Return the smaller of two, lane by lane; b if a is NaN."""
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


@lowered(unary_signature)
def fabs(builder, a):
    """Return the magnitude of each lane."""
    return call(builder, f"llvm.fabs.v{a.type.count}f32", a.type, [a])


def fma_ir(builder, a, b, c):
    """Write ``fma`` of vectors or scalars, for the lowering of another operation."""
    if not level.HAS_FMA:
        return builder.fadd(builder.fmul(a, b), c)
    return call(
        builder,
        "llvm.fma.f32" if a.type == F32 else f"llvm.fma.v{a.type.count}f32",
        a.type,
        [a, b, c],
    )


@lowered(lambda a, b, c: a(a, a, a))
def fma(builder, a, b, c):
    """Return a * b + c of f32 registers or scalars.

    The result is rounded once if the processor has FMA, else twice.
    """
    return fma_ir(builder, a, b, c)


def _splat(v):
    @lowered(v(SCALAR[v.lane]))
    def one_value(builder, x):
        """Return a register with the same value in every lane."""
        return splat(builder, x, v.ir)

    return one_value


splat_i8x32 = _splat(i8x32)
splat_i8x16 = _splat(i8x16)
splat_i8x64 = _splat(i8x64)
splat_i16x16 = _splat(i16x16)
splat_i16x32 = _splat(i16x32)
splat_i32x8 = _splat(i32x8)
splat_i32x16 = _splat(i32x16)
splat_f32x4 = _splat(f32x4)
splat_f32x8 = _splat(f32x8)
splat_f32x16 = _splat(f32x16)


@lowered(lambda v, x: v(v, SCALAR[v.lane]))
def splat_like(builder, v, x):
    """Return a register like v with the same value in every lane."""
    return splat(builder, x, v.type)


def _broadcast(v, unit):
    @lowered(v(types.intp))
    def broadcast(builder, address):
        """Repeat some bytes from memory over a register of bytes."""
        units = ir.VectorType(unit, 8 * v.n // unit.width)
        return builder.bitcast(splat(builder, read(builder, address, unit), units), v.ir)

    return broadcast


broadcast_4_bytes = _broadcast(i8x32, I32)
broadcast_4_bytes_64 = _broadcast(i8x64, I32)
broadcast_8_bytes = _broadcast(i8x32, I64)


@lowered(i8x32(types.intp))
def broadcast_16_bytes(builder, address):
    """Return sixteen bytes from memory, twice, as an i8x32."""
    return shuffle(builder, read(builder, address, i8x16.ir), [*range(16), *range(16)])


def _shift(operation):
    @lowered(lambda v, n: v(v, types.int64))
    def shift(builder, v, n):
        """Shift 16-bit lanes by n bits; bytes must be masked afterwards, since bits cross their
        borders."""
        words = ir.VectorType(I16, v.type.count * v.type.element.width // 16)
        counts = splat(builder, builder.trunc(n, I16), words)
        return builder.bitcast(
            getattr(builder, operation)(builder.bitcast(v, words), counts), v.type
        )

    return shift


shift_right = _shift("lshr")
shift_left = _shift("shl")


@lowered(i32x8(i32x8, types.int64))
def shift_left_i32(builder, v, n):
    """Shift 32-bit lanes left by n bits."""
    return builder.shl(v, splat(builder, builder.trunc(n, I32), i32x8.ir))


@lowered(binary_signature)
def bytes_above(builder, a, b):
    """Return 0xFF in each byte lane where a > b (signed), else 0."""
    return builder.sext(builder.icmp_signed(">", a, b), a.type)


@lowered(unary_signature)
def abs_i8(builder, v):
    """Return the magnitude of signed bytes; -128 stays (128 as unsigned)."""
    return call(builder, f"llvm.abs.v{v.type.count}i8", v.type, [v, ir.Constant(ir.IntType(1), 0)])


@lowered(i32x8(i32x8))
def abs_i32(builder, v):
    """Return magnitudes; the lowest number stays as it is."""
    return builder.select(builder.icmp_signed("<", v, i32x8.constant([0] * 8)), builder.neg(v), v)


@lowered(binary_signature)
def with_sign_of(builder, y, w):
    """Return y, negated where w is negative, 0 where w is 0 (byte lanes)."""
    if level.HAS_AVX2 and y.type == i8x32.ir:
        return call(builder, "llvm.x86.avx2.psign.b", y.type, [y, w])
    if level.HAS_SSSE3:
        return _halves(
            builder, (y, w), lambda low: call(builder, "llvm.x86.ssse3.psign.b.128", i8x16.ir, low)
        )
    zero = ir.Constant(y.type, [0] * y.type.count)
    turned = builder.select(builder.icmp_signed("<", w, zero), builder.sub(zero, y), y)
    return builder.select(builder.icmp_signed("==", w, zero), zero, turned)


def parts_of(builder, arguments, n_bits, operate):
    """Apply an operation on registers of ``n_bits`` to each part of the arguments."""
    vector_type = arguments[0].type
    if vector_type.count * vector_type.element.width == n_bits:
        return operate(list(arguments))
    halves = zip(*(in_halves(builder, a) for a in arguments), strict=True)
    results = [parts_of(builder, list(cut), n_bits, operate) for cut in halves]
    return shuffle(builder, tuple(results), range(2 * results[0].type.count))


def _halves(builder, arguments, operate):
    """Apply a 128-bit operation to each 128 bits of the arguments."""
    return parts_of(builder, arguments, 128, operate)


def in_halves(builder, v):
    """Return the lower and the upper half of a vector."""
    half = v.type.count // 2
    return [shuffle(builder, v, range(first, first + half)) for first in (0, half)]


def _full_or_halves(builder, arguments, full_name, half_name):
    """Call an instruction whose result is like its arguments: with 256 bits if there is AVX2, else
    128."""
    if level.HAS_AVX2:
        return call(builder, full_name, arguments[0].type, arguments)
    return _halves(
        builder,
        arguments,
        lambda halves: call(builder, half_name, halves[0].type, halves),
    )


def _pairs_added(builder, product):
    even, odd = (shuffle(builder, product, range(k, product.type.count, 2)) for k in range(2))
    return builder.add(even, odd)


def _widened_product(builder, args, first_extend, wide):
    return builder.mul(getattr(builder, first_extend)(args[0], wide), builder.sext(args[1], wide))


def neon(builder, name, result, *arguments):
    """Call an ARM64 instruction."""
    return call(builder, f"llvm.aarch64.neon.{name}", result.ir, list(arguments))


_WIDER_PAIRS = "saddlp.v4i32.v8i16"
"""Instruction that adds neighbouring int16 lanes into int32."""


def _neon_pairs(builder, result, registers):
    """Multiply two registers (signed) and add neighbours into lanes of twice the width."""
    lane_names = f"v{result.n}i{128 // result.n}"
    halves = zip(*(in_halves(builder, v) for v in registers), strict=True)
    return neon(
        builder,
        f"addp.{lane_names}",
        result,
        *(neon(builder, f"smull.{lane_names}", result, *cut) for cut in halves),
    )


def maddubs_ir(builder, a, b):
    """Write ``maddubs`` of two vectors of any length, for the lowering of another operation."""
    if level.HAS_AVX2:
        name = "llvm.x86.avx2.pmadd.ub.sw"
        return parts_of(builder, (a, b), 256, partial(call, builder, name, i16x16.ir))
    if level.HAS_SSSE3:
        name = "llvm.x86.ssse3.pmadd.ub.sw.128"
        return _halves(builder, (a, b), partial(call, builder, name, i16x8.ir))
    if level.HAS_ARM64:
        return _halves(builder, (a, b), partial(_neon_pairs, builder, i16x8))
    wide = ir.VectorType(I16, a.type.count)
    return _pairs_added(builder, _widened_product(builder, (a, b), "zext", wide))


@lowered(i16x16(i8x32, i8x32))
def maddubs(builder, a, b):
    """Return bytes of a times signed bytes of b, neighbours added; no sum may exceed int16.

    Bytes of a are unsigned; on ARM64 they are signed.
    """
    return maddubs_ir(builder, a, b)


def maddwd_ir(builder, a, b):
    """Write ``maddwd`` of two vectors of any length, for the lowering of another operation."""
    if level.HAS_AVX2 and a.type.count > 8:
        name = "llvm.x86.avx2.pmadd.wd"
        return parts_of(builder, [a, b], 256, partial(call, builder, name, i32x8.ir))
    if level.HAS_X86:
        return _halves(builder, [a, b], partial(call, builder, "llvm.x86.sse2.pmadd.wd", i32x4.ir))
    if level.HAS_ARM64:
        return _halves(builder, [a, b], partial(_neon_pairs, builder, i32x4))
    wide = ir.VectorType(I32, a.type.count)
    return _pairs_added(builder, _widened_product(builder, [a, b], "sext", wide))


def _maddwd(src, dst, native):
    @lowered(dst(src, src))
    def maddwd(builder, a, b):
        """Return signed 16-bit products, neighbours added into int32."""
        if native and level.HAS_VNNI_512:
            return call(builder, native, dst.ir, [a, b])
        return maddwd_ir(builder, a, b)

    return maddwd


maddwd = _maddwd(i16x16, i32x8, None)
maddwd_512 = _maddwd(i16x32, i32x16, "llvm.x86.avx512.pmaddw.d.512")
maddwd_128 = _maddwd(i16x8, i32x4, None)


@lowered(lambda total, a, b: total(total, a, b))
def add_fours(builder, total, a, b):
    """Add bytes of a times signed bytes of b to the total, four neighbours to each int32.

    Bytes of a are unsigned; on ARM64 they are signed. The result is exact for all bytes of a and
    for b from -127 to 127. On x86 without VNNI it is far slower than ``maddubs``.


    """
    if level.HAS_VNNI_512 if total.type == i32x16.ir else level.HAS_VNNI:
        # The operands' types before LLVM 22, which still takes them.
        words = [total, *(builder.bitcast(v, total.type) for v in (a, b))]
        return call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * total.type.count}", total.type, words)
    if level.HAS_DOTPROD:
        return _halves(
            builder, (total, a, b), lambda cut: neon(builder, "sdot.v4i32.v16i8", i32x4, *cut)
        )
    if level.HAS_ARM64:
        twos = _halves(builder, (a, b), partial(_neon_pairs, builder, i16x8))
        return builder.add(
            total, _halves(builder, [twos], lambda cut: neon(builder, _WIDER_PAIRS, i32x4, *cut))
        )
    twos = _pairs_added(
        builder, _widened_product(builder, (a, b), "zext", ir.VectorType(I32, a.type.count))
    )
    return builder.add(total, _pairs_added(builder, twos))


@lowered(i16x16(i16x16, i16x16))
def mul_high(builder, a, b):
    """Return the upper 16 bits of the products of unsigned 16-bit lanes.

    With a power of two this shifts each lane by its own number of bits.
    """
    if level.HAS_X86:
        return _full_or_halves(builder, [a, b], "llvm.x86.avx2.pmulhu.w", "llvm.x86.sse2.pmulhu.w")
    wide = ir.VectorType(I32, 16)
    product = builder.mul(*(builder.zext(v, wide) for v in (a, b)))
    return builder.trunc(builder.lshr(product, ir.Constant(wide, [16] * 16)), i16x16.ir)


@lowered(i8x32(i8x32, i8x32))
def lookup16(builder, table, index):
    """Return, for each byte of ``index`` (0 to 15), the byte of the 16-entry table in the same
    half."""
    if level.HAS_SSSE3:
        return _full_or_halves(
            builder, [table, index], "llvm.x86.avx2.pshuf.b", "llvm.x86.ssse3.pshuf.b.128"
        )
    if level.HAS_ARM64:
        return _halves(
            builder, (table, index), lambda cut: neon(builder, "tbl1.v16i8", i8x16, *cut)
        )
    result = i8x32.constant([0] * 32)
    for k in range(16):
        entry = shuffle(builder, table, [k] * 16 + [16 + k] * 16)
        is_entry = builder.icmp_signed("==", index, i8x32.constant([k] * 32))
        result = builder.select(is_entry, entry, result)
    return result


def pick(src, dst, lanes):
    """Make an operation that chooses fixed lanes of one register."""

    @lowered(dst(src))
    def choose(builder, v):
        """Choose fixed lanes."""
        return shuffle(builder, v, lanes)

    return choose


def pick_of_two(src, dst, lanes):
    """Make an operation that chooses fixed lanes of two registers, one after the other."""

    @lowered(dst(src, src))
    def choose(builder, a, b):
        """Choose fixed lanes of two registers."""
        return shuffle(builder, (a, b), lanes)

    return choose


_ROWS_IN_TWOS = [
    [8 * (k // 8) + 4 * half + 2 * (k % 8 // 4) for k in range(32)] for half in range(2)
]
words_of_first_rows, words_of_last_rows = (pick(i16x32, i16x32, lanes) for lanes in _ROWS_IN_TWOS)
"""int16 of the first two or the last two of each four rows, in the lanes of ``first_rows_i8``."""


def _above_zeros(half):
    @lowered(i16x32(i8x64))
    def above(builder, v):
        """Return the lower or upper eight bytes of each sixteen, times 256 as int16."""
        lanes = [64 if k % 2 == 0 else 16 * (k // 16) + 8 * half + k % 16 // 2 for k in range(64)]
        return builder.bitcast(shuffle(builder, (v, i8x64.constant([0] * 64)), lanes), i16x32.ir)

    return above


first_rows_i8 = _above_zeros(0)
last_rows_i8 = _above_zeros(1)


@lowered(binary_signature)
def mul_upper(builder, a, b):
    """Return the upper 16 bits of the products of signed 16-bit lanes."""
    n = a.type.count
    wide = ir.VectorType(I32, n)
    product = builder.mul(*(builder.sext(v, wide) for v in (a, b)))
    return builder.trunc(builder.ashr(product, ir.Constant(wide, [16] * n)), a.type)


@lowered(i8x64(i16x32, i16x32))
def interleaved_bytes(builder, first, last):
    """Return int16 of two registers as signed bytes: eight of the first, eight of the last, and so
    on."""
    if level.HAS_VNNI_512:
        return call(builder, "llvm.x86.avx512.packsswb.512", i8x64.ir, [first, last])
    lanes = [
        2 * (8 * lane + k) + 64 * half for lane in range(4) for half in (0, 1) for k in range(8)
    ]
    return shuffle(builder, tuple(builder.bitcast(v, i8x64.ir) for v in (first, last)), lanes)


low_half_i8 = pick(i8x32, i8x16, range(16))
high_half_i8 = pick(i8x32, i8x16, range(16, 32))
low_half_i16 = pick(i16x16, i16x8, range(8))
high_half_i16 = pick(i16x16, i16x8, range(8, 16))
low_half_i32 = pick(i32x8, i32x4, range(4))
each_twice_i16x8 = pick(i16x8, i16x16, [k // 2 for k in range(16)])
join_i8 = pick_of_two(i8x16, i8x32, range(32))
join_i32 = pick_of_two(i32x4, i32x8, range(8))


@lowered(i32x8(i32x4))
def i32x8_of_i32x4(builder, low):
    """Return four lanes and four zeros."""
    return shuffle(builder, (low, i32x4.constant([0] * 4)), range(8))


@lowered(i16x8(types.uint32, types.uint32))
def widen_8_bytes(builder, low, high):
    """Return two u32 as eight unsigned bytes, widened to i16x8."""
    v = vector_of(builder, ir.VectorType(I32, 2), [low, high])
    return builder.zext(builder.bitcast(v, ir.VectorType(I8, 8)), i16x8.ir)


def _convert(src, dst, operation):
    @lowered(dst(src))
    def convert(builder, v):
        """Convert lanes, or return the same bits as another type of register."""
        return getattr(builder, operation)(v, dst.ir)

    return convert


f32_of_i32x16 = _convert(i32x16, f32x16, "sitofp")
f32_of_i32x8 = _convert(i32x8, f32x8, "sitofp")
widen_i8x16 = _convert(i8x16, i16x16, "sext")
widen_u8x16 = _convert(i8x16, i16x16, "zext")
i32_of_i16x8 = _convert(i16x8, i32x8, "sext")
as_i16x16 = _convert(i8x32, i16x16, "bitcast")
as_i16x32 = _convert(i8x64, i16x32, "bitcast")
bytes_of_f32x8 = _convert(f32x8, i8x32, "bitcast")
bytes_of_i32x8 = _convert(i32x8, i8x32, "bitcast")


def _like(v, eight, sixteen):
    return sixteen if v.n == 16 else eight


@lowered(lambda v: _like(v, i32x8, i32x16)(v))
def round_to_i32(builder, v):
    """Round to the nearest integer, ties to even; lanes must be within 2^22."""
    n = v.type.count
    magic = ir.Constant(v.type, [12582912.0] * n)  # 1.5 * 2^23: its unit in the last place is one
    shifted = builder.bitcast(builder.fadd(v, magic), ir.VectorType(I32, n))
    return builder.sub(shifted, ir.Constant(shifted.type, [0x4B400000] * n))


@lowered(lambda v: _like(v, f32x8, f32x16)(v))
def f32_of_i32(builder, v):
    """Convert int32 lanes to f32."""
    return builder.sitofp(v, ir.VectorType(F32, v.type.count))


@lowered(lambda n: _like(n, f32x8, f32x16)(n))
def power_of_two(builder, n):
    """Return 2 to the power of each lane, -126 to 127, as f32."""
    count = n.type.count
    bits = builder.shl(
        builder.add(n, ir.Constant(n.type, [127] * count)), ir.Constant(n.type, [23] * count)
    )
    return builder.bitcast(bits, ir.VectorType(F32, count))


def _store_fours(bits):
    @lowered(types.void(types.intp, types.intp, i32x8))
    def store_fours(builder, address, step, v):
        """Write the low bits of eight int32: four at the address, four ``step`` bytes after it."""
        for half, four in enumerate(in_halves(builder, v)):
            small = builder.trunc(four, ir.VectorType(ir.IntType(bits), 4))
            write(builder, small, builder.add(address, builder.mul(step, I64(half))))

    return store_fours


store_four_i8 = _store_fours(8)
store_four_i16 = _store_fours(16)


def _store_apart(n_apart):
    @lowered(types.void(types.intp, types.intp, i32x8))
    def store_apart(builder, address, step, v):
        """Write the low bytes of eight int32, value k at address + (k mod n) * step + k div n."""
        small = builder.trunc(v, ir.VectorType(I8, 8))
        for k in range(8):
            target = builder.add(
                builder.add(address, builder.mul(step, I64(k % n_apart))), I64(k // n_apart)
            )
            write(builder, builder.extract_element(small, I32(k)), target)

    return store_apart


store_bytes_apart = _store_apart(8)
store_fours_apart = _store_apart(4)


@lowered(f32x8(types.intp))
def load_i8x8_as_f32(builder, address):
    """Load eight signed bytes as f32x8."""
    return builder.sitofp(
        builder.sext(read(builder, address, ir.VectorType(I8, 8)), i32x8.ir), f32x8.ir
    )


@lowered(f32x8(types.intp, types.int64))
def load_nibbles_as_f32(builder, address, shift):
    """Load four bits of each of eight bytes as signed numbers in f32x8.

    ``shift`` is 0 for the lower bits and 4 for the upper ones.
    """
    small = read(builder, address, ir.VectorType(I8, 8))
    up = builder.sub(I32(28), builder.trunc(shift, I32))
    placed = builder.shl(builder.zext(small, i32x8.ir), splat(builder, up, i32x8.ir))
    return builder.sitofp(builder.ashr(placed, i32x8.constant([28] * 8)), f32x8.ir)


def _butterfly(stride):
    @lowered(f32x8(f32x8))
    def butterfly(builder, v):
        """Return sums and differences of lanes that are ``stride`` apart, each sum in the first
        lane."""
        first = shuffle(builder, v, [lane & ~stride for lane in range(8)])
        second = shuffle(builder, v, [lane | stride for lane in range(8)])
        sums_and_differences = builder.fadd(first, second), builder.fsub(first, second)
        return shuffle(
            builder, sums_and_differences, [lane + (8 if lane & stride else 0) for lane in range(8)]
        )

    return butterfly


butterfly_1 = _butterfly(1)
butterfly_2 = _butterfly(2)
butterfly_4 = _butterfly(4)


def fold(builder, vector, operate):
    """Combine halves until one lane is left: the same tree at every level."""
    while vector.type.count > 1:
        vector = operate(*in_halves(builder, vector))
    return builder.extract_element(vector, I32(0))


def _reduce(v, operation):
    @lowered(SCALAR[v.lane](v))
    def reduce(builder, x):
        """Combine all lanes into one scalar."""

        def operate(a, b):
            if operation == "fmax":
                return builder.select(builder.fcmp_ordered(">", a, b), a, b)
            return getattr(builder, operation)(a, b)

        return fold(builder, x, operate)

    return reduce


sum_f32x8 = _reduce(f32x8, "fadd")
max_f32x8 = _reduce(f32x8, "fmax")
sum_i32x8 = _reduce(i32x8, "add")
sum_i32x4 = _reduce(i32x4, "add")

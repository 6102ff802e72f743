"""Operations that only the block formats of quantised weights need: gathers of scales, spread bits, folds.

Integer results are the same at every level; where a level has an instruction for the whole, it is named here, and
elsewhere LLVM gets plain IR.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.machine import level
from engine.simd.arith import _in_halves, _pick, _splat_ir, maddwd_ir
from engine.simd.memory import _widen_halves
from engine.simd.types import I32, I64, call, f32x4, f32x8, i8x16, i8x32, i16x16, i16x32, i32x4, i32x8, i32x16, shuffle

I8, I16 = ir.IntType(8), ir.IntType(16)


def _half_lane(k):
    @intrinsic
    def half_lane(typingctx, v):
        """One lane of each half."""

        def emit(context, builder, signature, args):
            if level.HAS_AVX2 or not level.HAS_SSSE3:
                return shuffle(builder, args[0], [k] * 8 + [8 + k] * 8)
            lanes = _hidden(builder, ir.Constant(i8x16.ir, [2 * k, 2 * k + 1] * 8))
            cut = [builder.bitcast(half, i8x16.ir) for half in _in_halves(builder, args[0])]
            picked = [call(builder, "llvm.x86.ssse3.pshuf.b.128", i8x16.ir, [half, lanes]) for half in cut]
            return builder.bitcast(shuffle(builder, tuple(picked), range(32)), i16x16.ir)

        return i16x16(i16x16), emit

    return half_lane


def _hidden(builder, value):
    """The same value, of which LLVM knows nothing: it would make three shuffles of one by a constant."""
    same = ir.InlineAsm(ir.FunctionType(value.type, [value.type]), "", "=x,0", side_effect=False)
    return builder.call(same, [value])


half_lane0, half_lane1, half_lane2, half_lane3, half_lane4, half_lane5, half_lane6, half_lane7 = (
    _half_lane(k) for k in range(8)
)
"""Lane k of each half, in all eight lanes of that half."""

even_then_odd = _pick(i8x16, i8x16, [*range(0, 16, 2), *range(1, 16, 2)])
"""Bytes 0, 2, 4 ... 14 and then 1, 3, 5 ... 15: scales of 16 weights, ready for ``half_lane``."""


halves_in_turn = _pick(i16x16, i16x16, [8 * (k % 2) + k // 2 for k in range(16)])
"""Lanes of the lower half and of the upper half in turn."""


@intrinsic
def maddwd_folded(typingctx, scale, products):
    """``maddwd`` of scales that are all the same with sums of products small enough to be added in pairs first."""

    def emit(context, builder, signature, args):
        if level.HAS_AVX2:
            return call(builder, "llvm.x86.avx2.pmadd.wd", i32x8.ir, args)
        scale, (low, high) = _in_halves(builder, args[0])[0], _in_halves(builder, args[1])
        folded = maddwd_ir(builder, scale, builder.add(low, high))
        return shuffle(builder, (folded, i32x4.constant([0] * 4)), range(8))

    return i32x8(i16x16, i16x16), emit


def _fence(builder):
    builder.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", side_effect=True), [])


@intrinsic
def keep_order(typingctx):
    """Let LLVM move no load beyond this point: where registers are few it would load everything first, and spill."""

    def emit(context, builder, signature, args):
        if not level.HAS_AVX2:
            _fence(builder)
        return context.get_dummy_value()

    return types.void(), emit


def _cast(src, dst):
    @intrinsic
    def cast(typingctx, v):
        """The same bits as another kind of register."""
        return dst(src), lambda context, builder, signature, args: builder.bitcast(args[0], dst.ir)

    return cast


as_i16x16 = _cast(i8x32, i16x16)
bytes_of_f32x8 = _cast(f32x8, i8x32)
bytes_of_i16x16, bytes_of_i32x8 = _cast(i16x16, i8x32), _cast(i32x8, i8x32)


def _read(builder, address, value):
    loaded = builder.load(builder.inttoptr(address, value.as_pointer()))
    loaded.align = 1
    return loaded


@intrinsic
def written(typingctx):
    """Let LLVM take no load beyond this point for what was stored before it: it would shuffle registers instead."""

    def emit(context, builder, signature, args):
        _fence(builder)
        return context.get_dummy_value()

    return types.void(), emit


def _within_halves(kind, lanes):
    """The same choice of lanes of a, and of b after them, in each 128-bit half."""
    half = kind.n // 2
    chosen = [at % half + (kind.n if at >= half else 0) + half * k for k in range(2) for at in lanes]

    @intrinsic
    def choose(typingctx, a, b):
        """A fixed choice of lanes of two registers."""
        return kind(kind, kind), lambda context, builder, signature, args: shuffle(builder, tuple(args), chosen)

    return choose


interleave_low_i8 = _within_halves(i8x32, [at for k in range(8) for at in (k, 16 + k)])
interleave_high_i8 = _within_halves(i8x32, [at for k in range(8, 16) for at in (k, 16 + k)])
"""Bytes of a and of b in turn, of the lower or upper eight of each half."""
interleave_low_i16 = _within_halves(i16x16, [at for k in range(4) for at in (k, 8 + k)])
interleave_high_i16 = _within_halves(i16x16, [at for k in range(4, 8) for at in (k, 8 + k)])
"""The same of int16."""
words_1323 = _within_halves(i8x32, [4 * word + byte for word in (1, 3, 2, 3) for byte in range(4)])
words_1122 = _within_halves(i8x32, [4 * word + byte for word in (1, 1, 2, 2) for byte in range(4)])
"""Four of a's 32-bit words in each half; b counts for nothing."""
last_word_of_b = _within_halves(i8x32, [*range(12), *range(28, 32)])
"""a, but for the last 32-bit word of each half."""


@intrinsic
def words_of_four(typingctx, a, b, c, d):
    """In each half the first 32-bit word of a, the second of b, the third of c and the last of d."""

    def emit(context, builder, signature, args):
        odd_from_other = [k + (32 if k % 8 >= 4 else 0) for k in range(32)]
        first = shuffle(builder, tuple(args[:2]), odd_from_other)
        last = shuffle(builder, tuple(args[2:]), odd_from_other)
        return shuffle(builder, (first, last), [k + (32 if k % 16 >= 8 else 0) for k in range(32)])

    return i8x32(i8x32, i8x32, i8x32, i8x32), emit


@intrinsic
def join_halves_f32(typingctx, low, high):
    """Lower half of one register and upper half of another."""
    lanes = [0, 1, 2, 3, 12, 13, 14, 15]
    return f32x8(f32x8, f32x8), lambda context, builder, signature, args: shuffle(builder, tuple(args), lanes)


@intrinsic
def low_half_f32(typingctx, v):
    """Lower half of a register, zeros after it."""

    def emit(context, builder, signature, args):
        return shuffle(builder, (args[0], f32x8.constant([0.0] * 8)), [0, 1, 2, 3, 8, 9, 10, 11])

    return f32x8(f32x8), emit


@intrinsic
def high_half_f32(typingctx, v):
    """Upper half of a register in the lower one, zeros after it."""

    def emit(context, builder, signature, args):
        return shuffle(builder, (args[0], f32x8.constant([0.0] * 8)), [4, 5, 6, 7, 8, 9, 10, 11])

    return f32x8(f32x8), emit


@intrinsic
def load_two_i8x16(typingctx, low, high):
    """Sixteen bytes from each of two addresses as one i8x32."""

    def emit(context, builder, signature, args):
        return shuffle(builder, tuple(_read(builder, address, i8x16.ir) for address in args), range(32))

    return i8x32(types.intp, types.intp), emit


@intrinsic
def broadcast_two_4_bytes(typingctx, low, high):
    """Four bytes from each of two addresses, each repeated over one half of an i8x32."""

    def emit(context, builder, signature, args):
        both = [_splat_ir(builder, _read(builder, at, I32), i32x8) for at in args]
        if level.HAS_AVX2:  # two broadcasting loads and a blend; LLVM would gather both words and spread them
            both = [_hidden(builder, one) for one in both]
        return builder.bitcast(shuffle(builder, tuple(both), [0, 1, 2, 3, 12, 13, 14, 15]), i8x32.ir)

    return i8x32(types.intp, types.intp), emit


def _fifth_bits(lanes):
    @intrinsic
    def fifth_bits(typingctx, bits):
        """16 in each byte lane whose bit is set among four broadcast bytes, else 0."""

        def emit(context, builder, signature, args):
            spread = shuffle(builder, args[0], lanes)
            own = builder.and_(spread, i8x32.constant([1 << (k & 7) for k in range(32)]))
            empty = builder.icmp_signed("==", own, i8x32.constant([0] * 32))
            return builder.select(empty, i8x32.constant([0] * 32), i8x32.constant([16] * 32))

        return i8x32(i8x32), emit

    return fifth_bits


fifth_bits = _fifth_bits([0] * 8 + [1] * 8 + [18] * 8 + [19] * 8)
"""All 32 bits of one block; both halves hold its four bytes."""

fifth_bits_low = _fifth_bits([0] * 8 + [1] * 8 + [16] * 8 + [17] * 8)
fifth_bits_high = _fifth_bits([2] * 8 + [3] * 8 + [18] * 8 + [19] * 8)
"""The lower (upper) 16 bits of two blocks, one in each half."""


byte_each_2, byte_each_4, byte_each_8, byte_each_16 = (
    _pick(i8x32, i8x32, [16 * (k // 16) + k // n for k in range(32)]) for n in (2, 4, 8, 16)
)
"""Of two equal halves, the first 16, 8, 4 or 2 bytes, each 2, 4, 8 or 16 times; of two bytes that repeat, too."""
word_each_4 = _pick(i8x32, i8x32, [16 * (k // 16) + 2 * (k // 8) + k % 2 for k in range(32)])
"""Of two equal halves, the first four int16, each four times."""


@intrinsic
def bits_to_bytes(typingctx, bits):
    """0xFF in each byte lane whose bit is set among four broadcast bytes, else 0."""

    def emit(context, builder, signature, args):
        spread = shuffle(builder, args[0], [0] * 8 + [1] * 8 + [18] * 8 + [19] * 8)
        wanted = i8x32.constant([1 << (k & 7) for k in range(32)])
        return builder.sext(builder.icmp_signed("==", builder.and_(spread, wanted), wanted), i8x32.ir)

    return i8x32(i8x32), emit


@intrinsic
def load_exponents_strided(typingctx, address, stride):
    """Eight powers of two, ``stride`` bytes apart, as f32x8: 2^(e - 128) of a byte e, but never below 2^-126.

    Smaller ones multiply zeros only; subnormal numbers would be slow.
    """

    def emit(context, builder, signature, args):
        exponents = ir.Constant(ir.VectorType(I8, 8), ir.Undefined)
        for k in range(8):
            at = builder.add(args[0], builder.mul(args[1], ir.Constant(I64, k)))
            exponents = builder.insert_element(exponents, _read(builder, at, I8), ir.Constant(I32, k))
        wide = builder.shl(builder.zext(exponents, i32x8.ir), i32x8.constant([23] * 8))
        least = i32x8.constant([1 << 24] * 8)
        kept = builder.select(builder.icmp_unsigned(">", wide, least), wide, least)
        return builder.bitcast(builder.sub(kept, i32x8.constant([1 << 23] * 8)), f32x8.ir)

    return f32x8(types.intp, types.int64), emit


@intrinsic
def load_exponent(typingctx, address):
    """2^(e - 128) of a byte e as f32, exact."""

    def emit(context, builder, signature, args):
        e = builder.zext(_read(builder, args[0], I8), I32)
        normal = builder.shl(builder.sub(e, ir.Constant(I32, 1)), ir.Constant(I32, 23))
        subnormal = builder.shl(ir.Constant(I32, 1 << 21), e)
        bits = builder.select(builder.icmp_unsigned("<", e, ir.Constant(I32, 2)), subnormal, normal)
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(types.intp), emit


@intrinsic
def lane_of_two(typingctx, v):
    """Of two int16 that repeat, the first in the lower half and the second in the upper one."""

    def emit(context, builder, signature, args):
        v = _hidden(builder, args[0]) if level.HAS_AVX2 else args[0]  # known, it would be put together in three steps
        return shuffle(builder, v, [0] * 8 + [9] * 8)

    return i16x16(i16x16), emit


@intrinsic
def first_lane(typingctx, v):
    """The first of eight f32."""
    signature = types.float32(f32x8)
    return signature, lambda context, builder, signature, args: builder.extract_element(args[0], ir.Constant(I32, 0))


@intrinsic
def f32_of_half_bits(typingctx, bits):
    """A half, given as a number, as float32."""
    signature = types.float32(types.int64)
    return signature, lambda context, builder, signature, args: _widen_halves(builder, builder.trunc(args[0], I16), 1)


@intrinsic
def odd_words(typingctx, a, b):
    """The odd int32 of two registers."""
    return i32x8(i32x8, i32x8), lambda context, builder, signature, args: shuffle(builder, tuple(args), range(1, 16, 2))


@intrinsic
def load_f16x4(typingctx, address):
    """Read four halves as f32x4."""

    def emit(context, builder, signature, args):
        return _widen_halves(builder, _read(builder, args[0], ir.VectorType(I16, 4)), 4)

    return f32x4(types.intp), emit


first_f32, second_f32, third_f32, fourth_f32 = (_pick(f32x4, f32x8, [k] * 8) for k in range(4))
"""One of four f32, in eight lanes."""


@intrinsic
def load_f16x8_strided(typingctx, address, stride):
    """Eight halves, ``stride`` bytes apart, as f32x8."""

    def emit(context, builder, signature, args):
        bits = ir.Constant(ir.VectorType(I16, 8), ir.Undefined)
        for k in range(8):
            at = builder.add(args[0], builder.mul(args[1], ir.Constant(I64, k)))
            bits = builder.insert_element(bits, _read(builder, at, I16), ir.Constant(I32, k))
        return _widen_halves(builder, bits, 8)

    return f32x8(types.intp, types.intp), emit


def _halves_of(n):
    """Halves at n addresses, each in 8 / n lanes."""

    def gathered(builder, args):
        bits = ir.Constant(ir.VectorType(I16, n), ir.Undefined)
        for k, address in enumerate(args):
            bits = builder.insert_element(bits, _read(builder, address, I16), ir.Constant(I32, k))
        return shuffle(builder, _widen_halves(builder, bits, n), [k * n // 8 for k in range(8)])

    return gathered


@intrinsic
def halves_of_two(typingctx, a, b):
    """Two halves as f32, each in four lanes."""
    signature = f32x8(types.intp, types.intp)
    return signature, lambda context, builder, signature, args: _halves_of(2)(builder, args)


@intrinsic
def load_small_floats(typingctx, a, b):
    """Half of four floats of seven bits (NVFP4) at each of two addresses: two of each, then the other two of each.

    As halves they are 2^8 too small; 0x7F means 0.
    """

    def emit(context, builder, signature, args):
        both = [_read(builder, at, ir.VectorType(ir.IntType(8), 4)) for at in args]
        bits = builder.zext(shuffle(builder, tuple(both), [0, 1, 4, 5, 2, 3, 6, 7]), ir.VectorType(I16, 8))

        def same(x):
            return ir.Constant(bits.type, [x] * 8)

        halves = builder.shl(builder.and_(bits, same(0x7F)), same(7))
        halves = builder.select(builder.icmp_unsigned("==", bits, same(0x7F)), same(0), halves)
        return builder.fmul(_widen_halves(builder, halves, 8), ir.Constant(f32x8.ir, [128.0] * 8))

    return f32x8(types.intp, types.intp), emit


@intrinsic
def spread_scales(typingctx, address):
    """Four f32 as lanes 0, 0, 2, 2, 1, 1, 3, 3: scales of 32 activations for what ``load_small_floats`` reads."""

    def emit(context, builder, signature, args):
        return shuffle(builder, _read(builder, args[0], f32x4.ir), [0, 0, 2, 2, 1, 1, 3, 3])

    return f32x8(types.intp), emit


def _quads(first):
    @intrinsic
    def quads(typingctx, a, b):
        """Every second eight bytes of two registers, in turn."""
        signature, at = i8x32(i8x32, i8x32), (8 * first, 32 + 8 * first, 16 + 8 * first, 48 + 8 * first)
        lanes = [start + k for start in at for k in range(8)]
        return signature, lambda context, builder, signature, args: shuffle(builder, tuple(args), lanes)

    return quads


even_quads, odd_quads = _quads(0), _quads(1)


@intrinsic
def halves_of_four(typingctx, a, b, c, d):
    """Four halves as f32, each in two lanes."""
    signature = f32x8(*[types.intp] * 4)
    return signature, lambda context, builder, signature, args: _halves_of(4)(builder, args)


@intrinsic
def low_bytes_of(typingctx, a, b):
    """The low bytes of sixteen int16, and of sixteen others after them."""

    def emit(context, builder, signature, args):
        small = [builder.trunc(v, i8x16.ir) for v in args]
        return shuffle(builder, tuple(small), range(32))

    return i8x32(i16x16, i16x16), emit


def _quarter(k):
    @intrinsic
    def quarter(typingctx, v):
        """Eight of 32 signed bytes as f32x8."""

        def emit(context, builder, signature, args):
            small = shuffle(builder, args[0], range(8 * k, 8 * k + 8))
            return builder.sitofp(builder.sext(small, i32x8.ir), f32x8.ir)

        return f32x8(i8x32), emit

    return quarter


first_bytes_f32, second_bytes_f32, third_bytes_f32, fourth_bytes_f32 = (_quarter(k) for k in range(4))


def _fold_pair(kind, first, second):
    """Add lanes of two registers that belong together; two shuffles and an addition beat a horizontal addition."""

    @intrinsic
    def fold_pair(typingctx, a, b):
        """Sums of lanes of a and of b, half as many of each, within each 128-bit half."""

        def emit(context, builder, signature, args):
            return builder.add(*(shuffle(builder, tuple(args), lanes) for lanes in (first, second)))

        return kind(kind, kind), emit

    return fold_pair


fold_fours = _fold_pair(
    i16x16, [*range(4), *range(16, 20), *range(8, 12), *range(24, 28)],
    [*range(4, 8), *range(20, 24), *range(12, 16), *range(28, 32)],
)  # fmt: skip
"""int16: eight lanes of a and eight of b in each half become four and four."""

fold_twos = _fold_pair(
    i16x16, [0, 1, 4, 5, 16, 17, 20, 21, 8, 9, 12, 13, 24, 25, 28, 29],
    [2, 3, 6, 7, 18, 19, 22, 23, 10, 11, 14, 15, 26, 27, 30, 31],
)  # fmt: skip
"""int16: two kinds of four lanes each in a, and in b, become four kinds of two."""

fold_neighbours = _fold_pair(i32x8, [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15])
"""int32: neighbours of a, then of b, within each half."""


@intrinsic
def add_halves(typingctx, a, b):
    """Lower half of the result: a's halves added; upper half: b's."""

    def emit(context, builder, signature, args):
        low = shuffle(builder, tuple(args), [*range(4), *range(8, 12)])
        high = shuffle(builder, tuple(args), [*range(4, 8), *range(12, 16)])
        return builder.add(low, high)

    return i32x8(i32x8, i32x8), emit


def _broadcast_i32(v):
    @intrinsic
    def broadcast(typingctx, address):
        """One int32 from memory in all lanes."""

        def emit(context, builder, signature, args):
            return _splat_ir(builder, _read(builder, args[0], I32), v)

        return v(types.intp), emit

    return broadcast


broadcast_i32, broadcast_i32x16 = _broadcast_i32(i32x8), _broadcast_i32(i32x16)


def _pairs_i16(v):
    @intrinsic
    def pairs(typingctx, even, odd):
        """Two values in turn, in all int16 lanes."""

        def emit(context, builder, signature, args):
            two = ir.Constant(v.ir, ir.Undefined)
            for k in range(2):
                two = builder.insert_element(two, builder.trunc(args[k], I16), ir.Constant(I32, k))
            return shuffle(builder, two, [0, 1] * (v.n // 2))

        return v(types.int64, types.int64), emit

    return pairs


pairs_i16, pairs_i16x32 = _pairs_i16(i16x16), _pairs_i16(i16x32)


def _shift_lanes(operation):
    @intrinsic
    def shift(typingctx, v, n):
        """Shift each lane by n bits, arithmetic to the right."""
        bits = {"i16": I16, "i32": I32}[v.lane]

        def emit(context, builder, signature, args):
            count = builder.trunc(args[1], bits)
            one = builder.insert_element(ir.Constant(v.ir, ir.Undefined), count, ir.Constant(I32, 0))
            return getattr(builder, operation)(args[0], shuffle(builder, one, [0] * v.n))

        return v(v, types.int64), emit

    return shift


shift_lanes_left, shift_lanes_right = _shift_lanes("shl"), _shift_lanes("ashr")


@intrinsic
def four_u32(typingctx, a, b, c, d):
    """Four u32 as i8x16."""

    def emit(context, builder, signature, args):
        v = ir.Constant(i32x4.ir, ir.Undefined)
        for k, word in enumerate(args):
            v = builder.insert_element(v, word, ir.Constant(I32, k))
        return builder.bitcast(v, i8x16.ir)

    return i8x16(*[types.uint32] * 4), emit


def _constants(kind):
    def of_lanes(lanes):
        """An intrinsic that returns a register of fixed lanes: a codebook, held by the module that names it."""

        @intrinsic
        def constant(typingctx):
            return kind(), lambda context, builder, signature, args: kind.constant(lanes)

        return constant

    return of_lanes


constant_i8x32, constant_i16x16 = _constants(i8x32), _constants(i16x16)


@intrinsic
def load_bf16(typingctx, address):
    """Read one bfloat16 as float32."""

    def emit(context, builder, signature, args):
        wide = builder.shl(builder.zext(_read(builder, args[0], I16), I32), ir.Constant(I32, 16))
        return builder.bitcast(wide, ir.FloatType())

    return types.float32(types.intp), emit


def _opaque(v, has_effect):
    """An identity that the optimiser cannot look through; with an effect it stays where the source has it."""

    def emit(context, builder, signature, args):
        if not level.HAS_AVX2:
            return args[0]
        kind = ir.FunctionType(v.ir, [v.ir])
        is_512_bits = v.n * int(v.lane[1:]) == 512
        if is_512_bits and not level.HAS_VNNI_512:
            return args[0]
        registers = "=v,0" if is_512_bits else "=x,0"
        return builder.call(ir.InlineAsm(kind, "", registers, side_effect=has_effect), args)

    return v(v), emit


@intrinsic
def in_order(typingctx, v):
    """The same value, opaque: the optimiser would add long sums as trees, which need more registers than there are."""
    return _opaque(v, False)


@intrinsic
def in_turn(typingctx, v):
    """The same value, computed before what follows in the source: the order of the processor's queue is ours."""
    return _opaque(v, True)


@intrinsic
def rolled(typingctx, n):
    """The number n, opaque: a loop whose body asks for it stays a loop, and compiles quickly."""

    def emit(context, builder, signature, args):
        kind = ir.FunctionType(I64, [I64])
        return builder.call(ir.InlineAsm(kind, "", "=r,0", side_effect=False), args)

    return types.int64(types.int64), emit

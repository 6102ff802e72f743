"""Loads, stores and prefetches by address, atomics, the clock, and the system calls a waiting thread needs.

Every access states an alignment of one: blocks in a file are 18, 144 or 210 bytes long, and LLVM would otherwise be
free to emit aligned moves that fault.
"""

import mmap
import sys

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.machine import level
from engine.simd.types import (
    I32,
    I64,
    Vec,
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

I8 = ir.IntType(8)


def _load(kind, value):
    @intrinsic
    def load(typingctx, address):
        """Read one value from an address of any alignment."""

        def emit(context, builder, signature, args):
            if isinstance(kind, Vec) and kind.is_split:
                return _load_halves(builder, args[0], kind)
            loaded = builder.load(builder.inttoptr(args[0], value.as_pointer()))
            loaded.align = 1
            return loaded

        return kind(types.intp), emit

    return load


def _load_halves(builder, address, kind):
    half = ir.VectorType(kind.ir.element, kind.n // 2)
    parts = []
    for k in range(2):
        part = builder.load(builder.inttoptr(builder.add(address, I64(16 * k)), half.as_pointer()))
        part.align = 1
        parts.append(part)
    return shuffle(builder, tuple(parts), range(kind.n))


def _store(kind, value):
    @intrinsic
    def store(typingctx, address, x):
        """Write one value to an address of any alignment."""

        def emit(context, builder, signature, args):
            builder.store(args[1], builder.inttoptr(args[0], value.as_pointer())).align = 1
            return context.get_dummy_value()

        return types.void(types.intp, kind), emit

    return store


load_i8x16, load_i8x32 = _load(i8x16, i8x16.ir), _load(i8x32, i8x32.ir)
load_i16x8, load_i16x16 = _load(i16x8, i16x8.ir), _load(i16x16, i16x16.ir)
load_i32x4, load_i32x8 = _load(i32x4, i32x4.ir), _load(i32x8, i32x8.ir)
load_f32x4, load_f32x8 = _load(f32x4, f32x4.ir), _load(f32x8, f32x8.ir)
load_i8x64, load_i32x16, load_f32x16 = _load(i8x64, i8x64.ir), _load(i32x16, i32x16.ir), _load(f32x16, f32x16.ir)
load_i16x32 = _load(i16x32, i16x32.ir)
load_u8, load_i8 = _load(types.uint8, I8), _load(types.int8, I8)
load_u16, load_i16 = _load(types.uint16, ir.IntType(16)), _load(types.int16, ir.IntType(16))
load_u32, load_i32, load_i64 = _load(types.uint32, I32), _load(types.int32, I32), _load(types.int64, I64)
load_f32, load_f64 = _load(types.float32, ir.FloatType()), _load(types.float64, ir.DoubleType())

store_i8x16, store_i8x32 = _store(i8x16, i8x16.ir), _store(i8x32, i8x32.ir)
store_i16x8, store_i16x16 = _store(i16x8, i16x8.ir), _store(i16x16, i16x16.ir)
store_i32x4, store_i32x8 = _store(i32x4, i32x4.ir), _store(i32x8, i32x8.ir)
store_f32x4, store_f32x8 = _store(f32x4, f32x4.ir), _store(f32x8, f32x8.ir)
store_i8x64, store_i32x16, store_f32x16 = _store(i8x64, i8x64.ir), _store(i32x16, i32x16.ir), _store(f32x16, f32x16.ir)
LANES, load_lanes, store_lanes = (16, load_f32x16, store_f32x16) if level.HAS_VNNI_512 else (8, load_f32x8, store_f32x8)
"""The most float32 of a register, for what works on lanes alone."""
store_u8, store_i8, store_i16 = _store(types.uint8, I8), _store(types.int8, I8), _store(types.int16, ir.IntType(16))
store_i32, store_i64 = _store(types.int32, I32), _store(types.int64, I64)
store_f32 = _store(types.float32, ir.FloatType())


def _widen_halves(builder, bits, n):
    """f32 lanes of f16 bit patterns, with integer arithmetic where the processor has no F16C.

    The exponent moves by an addition. Subnormal halves get the smallest exponent, and then lose its one again in
    float32, where nothing is subnormal: scales are often so small, and processors are slow with subnormal numbers.
    Infinities and NaN keep an exponent of all ones. Source: Giesen, "Float->half variants".
    """
    vector = n > 1
    f32 = ir.VectorType(ir.FloatType(), n) if vector else ir.FloatType()
    i32 = ir.VectorType(I32, n) if vector else I32
    if level.HAS_F16C:
        f16 = ir.VectorType(ir.HalfType(), n) if vector else ir.HalfType()
        return builder.fpext(builder.bitcast(bits, f16), f32)

    def same(kind, x):
        return ir.Constant(kind, [x] * n if vector else x)

    wide = builder.zext(bits, i32)
    magnitude = builder.shl(builder.and_(wide, same(i32, 0x7FFF)), same(i32, 13))
    normal = builder.add(magnitude, same(i32, 112 << 23))
    one_more = builder.bitcast(builder.add(magnitude, same(i32, 113 << 23)), f32)
    small = builder.bitcast(builder.fsub(one_more, same(f32, float(2.0**-14))), i32)
    value = builder.select(builder.icmp_unsigned("<", magnitude, same(i32, 0x400 << 13)), small, normal)
    special = builder.icmp_unsigned(">=", magnitude, same(i32, 0x7C00 << 13))
    value = builder.select(special, builder.or_(magnitude, same(i32, 0x7F800000)), value)
    sign = builder.shl(builder.and_(wide, same(i32, 0x8000)), same(i32, 16))
    return builder.bitcast(builder.or_(value, sign), f32)


@intrinsic
def load_f16(typingctx, address):
    """Read one half as float32."""

    def emit(context, builder, signature, args):
        bits = builder.load(builder.inttoptr(args[0], ir.IntType(16).as_pointer()))
        bits.align = 1
        return _widen_halves(builder, bits, 1)

    return types.float32(types.intp), emit


@intrinsic
def load_f16x8(typingctx, address):
    """Read eight halves as f32x8."""

    def emit(context, builder, signature, args):
        bits = builder.load(builder.inttoptr(args[0], ir.VectorType(ir.IntType(16), 8).as_pointer()))
        bits.align = 1
        return _widen_halves(builder, bits, 8)

    return f32x8(types.intp), emit


@intrinsic
def load_bf16x8(typingctx, address):
    """Read eight bfloat16 as f32x8: they are the upper halves of float32."""

    def emit(context, builder, signature, args):
        bits = builder.load(builder.inttoptr(args[0], ir.VectorType(ir.IntType(16), 8).as_pointer()))
        bits.align = 1
        wide = builder.zext(bits, i32x8.ir)
        return builder.bitcast(builder.shl(wide, i32x8.constant([16] * 8)), f32x8.ir)

    return f32x8(types.intp), emit


def _narrow_floats(builder, value, n):
    """f16 bit patterns of f32 lanes, rounded to nearest even."""
    vector = n > 1
    i16 = ir.VectorType(ir.IntType(16), n) if vector else ir.IntType(16)
    i32 = ir.VectorType(I32, n) if vector else I32
    f32 = ir.VectorType(ir.FloatType(), n) if vector else ir.FloatType()
    if level.HAS_F16C:
        f16 = ir.VectorType(ir.HalfType(), n) if vector else ir.HalfType()
        return builder.bitcast(builder.fptrunc(value, f16), i16)

    def same(kind, x):
        return ir.Constant(kind, [x] * n if vector else x)

    bits = builder.bitcast(value, i32)
    sign = builder.lshr(builder.and_(bits, same(i32, 0x80000000)), same(i32, 16))
    magnitude = builder.and_(bits, same(i32, 0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, same(i32, 13)), same(i32, 1))
    rounded = builder.lshr(builder.add(builder.add(magnitude, odd), same(i32, 0xFFF - (112 << 23))), same(i32, 13))
    # below 2^-14 the addition of 0.5 lets the float unit do the rounding at the subnormal step of 2^-24
    shifted = builder.bitcast(builder.fadd(builder.bitcast(magnitude, f32), same(f32, 0.5)), i32)
    subnormal = builder.sub(shifted, same(i32, 0x3F000000))
    small = builder.icmp_unsigned("<", magnitude, same(i32, 0x38800000))
    large = builder.icmp_unsigned(">=", magnitude, same(i32, 0x477FF000))
    half = builder.select(small, subnormal, rounded)
    nan = builder.icmp_unsigned(">", magnitude, same(i32, 0x7F800000))
    beyond = builder.select(nan, same(i32, 0x7E00), same(i32, 0x7C00))
    return builder.trunc(builder.or_(builder.select(large, beyond, half), sign), i16)


@intrinsic
def store_f16(typingctx, address, x):
    """Write a float32 as half."""

    def emit(context, builder, signature, args):
        bits = _narrow_floats(builder, args[1], 1)
        builder.store(bits, builder.inttoptr(args[0], bits.type.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(types.intp, types.float32), emit


@intrinsic
def store_f16x8(typingctx, address, x):
    """Write f32x8 as eight halves."""

    def emit(context, builder, signature, args):
        bits = _narrow_floats(builder, args[1], 8)
        builder.store(bits, builder.inttoptr(args[0], bits.type.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(types.intp, f32x8), emit


@intrinsic
def round_to_f16(typingctx, x):
    """The float32 nearest to x that a half can hold."""

    def emit(context, builder, signature, args):
        return _widen_halves(builder, _narrow_floats(builder, args[0], 1), 1)

    return types.float32(types.float32), emit


def _prefetch(locality):
    @intrinsic
    def prefetch(typingctx, address):
        """Ask for the cache line of an address; any address is allowed."""

        def emit(context, builder, signature, args):
            hint = [ir.Constant(I32, x) for x in (0, locality, 1)]
            call(builder, "llvm.prefetch.p0", ir.VoidType(), [builder.inttoptr(args[0], I8.as_pointer()), *hint])
            return context.get_dummy_value()

        return types.void(types.intp), emit

    return prefetch


prefetch_l1 = _prefetch(3)
prefetch_l2 = _prefetch(2)
prefetch_once = _prefetch(0)


@intrinsic
def atomic_add(typingctx, address, x):
    """Add to an aligned int64 in one step; returns what it held before."""

    def emit(context, builder, signature, args):
        return builder.atomic_rmw("add", builder.inttoptr(args[0], I64.as_pointer()), args[1], "seq_cst")

    return types.int64(types.intp, types.int64), emit


@intrinsic
def atomic_load(typingctx, address):
    """Read an aligned int64 that another thread may write."""

    def emit(context, builder, signature, args):
        return builder.load_atomic(builder.inttoptr(args[0], I64.as_pointer()), "seq_cst", 8)

    return types.int64(types.intp), emit


@intrinsic
def atomic_store(typingctx, address, x):
    """Write an aligned int64 that other threads read."""

    def emit(context, builder, signature, args):
        builder.store_atomic(args[1], builder.inttoptr(args[0], I64.as_pointer()), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), emit


@intrinsic
def call_kernel(typingctx, kernel, op, thread, n_threads):
    """Call a compiled operation by its address."""

    def emit(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), [I64, I64, I64])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp), emit


@intrinsic
def pause(typingctx):
    """Tell the core that this is a spin loop."""

    def emit(context, builder, signature, args):
        if level.HAS_X86:
            call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
        elif level.HAS_ARM64:  # ``yield`` does nothing on most cores; this waits until the pipeline is empty
            call(builder, "llvm.aarch64.isb", ir.VoidType(), [ir.Constant(I32, 15)])
        return context.get_dummy_value()

    return types.void(), emit


NOMINAL_HZ = 2_500_000_000


@intrinsic
def cycles(typingctx):
    """The processor's cycle counter; on ARM64 its clock, as cycles of ``NOMINAL_HZ``."""

    def emit(context, builder, signature, args):
        count = call(builder, "llvm.readcyclecounter", I64, [])
        if not level.HAS_ARM64:
            return count
        # Some firmware leaves the rate 0; differences of products are right even where these no longer fit.
        # Not by inline assembly: numba has no parser for it.
        name = builder.module.add_metadata(["CNTFRQ_EL0"])
        rate = call(builder, "llvm.read_register.i64", I64, [name])
        known = builder.select(builder.icmp_unsigned("==", rate, I64(0)), I64(1), rate)
        return builder.mul(count, builder.udiv(I64(NOMINAL_HZ), known))

    return types.int64(), emit


_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129


def _futex_number() -> int | None:
    import platform

    return _FUTEX_NUMBER.get(platform.machine()) if sys.platform == "linux" else None


FUTEX = _futex_number()


def _syscall(builder, arguments):
    """Call libc's variadic ``syscall``."""
    kind = ir.FunctionType(I64, [I64], var_arg=True)
    function = builder.module.globals.get("syscall") or ir.Function(builder.module, kind, "syscall")
    return builder.call(function, arguments)


@intrinsic
def sleep_while_equal(typingctx, address, expected):
    """Sleep until woken, if the low 32 bits at an aligned address still hold ``expected``; may return early."""

    def emit(context, builder, signature, args):
        if FUTEX is None:
            call(builder, "usleep", I32, [ir.Constant(I32, 200)])
        else:
            constants = [ir.Constant(I64, x) for x in (FUTEX, _FUTEX_WAIT_PRIVATE)]
            none = ir.Constant(I64, 0)
            _syscall(builder, [constants[0], args[0], constants[1], args[1], none, none, none])
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), emit


@intrinsic
def wake_all(typingctx, address):
    """Wake every thread that sleeps on this address."""

    def emit(context, builder, signature, args):
        if FUTEX is not None:
            none = ir.Constant(I64, 0)
            number, wake, everyone = (ir.Constant(I64, x) for x in (FUTEX, _FUTEX_WAKE_PRIVATE, 2**31 - 1))
            _syscall(builder, [number, args[0], wake, everyone, none, none, none])
        return context.get_dummy_value()

    return types.void(types.intp), emit


WILL_NEED = getattr(mmap, "MADV_WILLNEED", None)
PAGE_OUT = 21 if sys.platform == "linux" else None
"""Linux 5.4; Python has no name for it. It is refused before that, and ignored for a file of another user."""
PAGE_BYTES = mmap.PAGESIZE


def _advice(number):
    def emit(context, builder, signature, args):
        if number is not None:
            call(builder, "madvise", I32, [*args, ir.Constant(I32, int(number))])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), emit


@intrinsic
def ask_for_pages(typingctx, address, n_bytes):
    """Tell the system that mapped pages are needed soon, if it takes advice; ``address`` is a page's."""
    return _advice(WILL_NEED)


@intrinsic
def drop_pages(typingctx, address, n_bytes):
    """Let the system forget mapped pages of a file, where no other program uses them; both numbers are whole pages."""
    return _advice(PAGE_OUT)

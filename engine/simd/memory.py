"""Loads, stores and prefetches by address, atomics, the clock, and system calls of waiting threads.

Every access has an alignment of one: blocks in a file are 18, 144 or 210 bytes long, and LLVM could
otherwise emit aligned moves that fault.
"""

import mmap
import sys

from llvmlite import ir
from numba import types

from engine.machine import level
from engine.simd.types import (
    F32,
    I8,
    I16,
    I32,
    I64,
    call,
    f32x8,
    f32x16,
    i8x16,
    i8x32,
    i8x64,
    i16x8,
    i16x16,
    i16x32,
    i32x8,
    i32x16,
    is_split,
    lowered,
    read,
    shuffle,
    write,
)


def read_register(builder, address, vector_type):
    """Load a vector, in halves if the processor has no such registers."""
    if not is_split(vector_type):
        return read(builder, address, vector_type)
    half = ir.VectorType(vector_type.element, vector_type.count // 2)
    halves = [read(builder, builder.add(address, I64(16 * k)), half) for k in range(2)]
    return shuffle(builder, tuple(halves), range(vector_type.count))


def _load(value_type, ir_type=None):
    @lowered(value_type(types.intp))
    def load(builder, address):
        """Read one value from an address of any alignment."""
        return (
            read_register(builder, address, value_type.ir)
            if ir_type is None
            else read(builder, address, ir_type)
        )

    return load


def _store(value_type):
    @lowered(types.void(types.intp, value_type))
    def store(builder, address, x):
        """Write one value to an address of any alignment."""
        write(builder, x, address)

    return store


load_i8x16, load_i8x32, load_i8x64 = map(_load, (i8x16, i8x32, i8x64))
load_i16x8, load_i16x16, load_i16x32 = map(_load, (i16x8, i16x16, i16x32))
load_i32x8, load_i32x16 = map(_load, (i32x8, i32x16))
load_f32x8, load_f32x16 = map(_load, (f32x8, f32x16))
load_u8 = _load(types.uint8, I8)
load_i8 = _load(types.int8, I8)
load_u16 = _load(types.uint16, I16)
load_i16 = _load(types.int16, I16)
load_u32 = _load(types.uint32, I32)
load_i32 = _load(types.int32, I32)
load_i64 = _load(types.int64, I64)
load_f32 = _load(types.float32, F32)
load_f64 = _load(types.float64, ir.DoubleType())

store_i8x32, store_i8x64, store_i16x8 = map(_store, (i8x32, i8x64, i16x8))
store_i16x16, store_i16x32 = map(_store, (i16x16, i16x32))
store_i32x8, store_i32x16, store_f32x8, store_f32x16 = map(_store, (i32x8, i32x16, f32x8, f32x16))
LANES, load_lanes, store_lanes = (
    (16, load_f32x16, store_f32x16) if level.HAS_VNNI_512 else (8, load_f32x8, store_f32x8)
)
"""Number of f32 in the widest register, and its load and store, for operations on lanes alone."""
store_u8, store_i8, store_i16, store_i32 = map(
    _store, (types.uint8, types.int8, types.int16, types.int32)
)
store_i64 = _store(types.int64)
store_f32 = _store(types.float32)


@lowered(lambda op, offsets: types.UniTuple(types.int64, offsets.count)(op, offsets))
def load_words(builder, op, offsets):
    """Read int64 of a record by their offsets in it."""
    words = ir.Constant(offsets.type, ir.Undefined)
    for k in range(offsets.type.count):
        word = read(builder, builder.add(op, builder.extract_value(offsets, k)), I64)
        words = builder.insert_value(words, word, k)
    return words


def _types_like(model):
    """Return LLVM's i16, i32, f16 and f32, or vectors of them as long as a given one."""
    lane_types = I16, I32, ir.HalfType(), F32
    return (
        [ir.VectorType(lane_type, model.count) for lane_type in lane_types]
        if isinstance(model, ir.VectorType)
        else lane_types
    )


def _constant(ir_type, x):
    return ir.Constant(ir_type, [x] * ir_type.count if isinstance(ir_type, ir.VectorType) else x)


def widen_halves(builder, bits):
    """Return f16 bit patterns as f32, with integer arithmetic if the processor has no F16C.

    The exponent is moved by an addition. Subnormal numbers get the smallest exponent, and lose it
    again in f32, where they are normal: scales are often that small, and processors are slow with
    subnormal numbers. Infinities and NaN keep an exponent of all ones.

    Source: Giesen, "Float->half variants".
    """
    _, i32, f16, f32 = _types_like(bits.type)
    if level.HAS_F16C:
        return builder.fpext(builder.bitcast(bits, f16), f32)
    wide = builder.zext(bits, i32)
    magnitude = builder.shl(builder.and_(wide, _constant(i32, 0x7FFF)), _constant(i32, 13))
    normal = builder.add(magnitude, _constant(i32, 112 << 23))
    raised = builder.bitcast(builder.add(magnitude, _constant(i32, 113 << 23)), f32)
    small = builder.bitcast(builder.fsub(raised, _constant(f32, float(2.0**-14))), i32)
    value = builder.select(
        builder.icmp_unsigned("<", magnitude, _constant(i32, 0x400 << 13)), small, normal
    )
    special = builder.icmp_unsigned(">=", magnitude, _constant(i32, 0x7C00 << 13))
    value = builder.select(special, builder.or_(magnitude, _constant(i32, 0x7F800000)), value)
    sign = builder.shl(builder.and_(wide, _constant(i32, 0x8000)), _constant(i32, 16))
    return builder.bitcast(builder.or_(value, sign), f32)


@lowered(types.float32(types.intp))
def load_f16(builder, address):
    """Load one f16 as f32."""
    return widen_halves(builder, read(builder, address, I16))


@lowered(f32x8(types.intp))
def load_f16x8(builder, address):
    """Load eight f16 as f32x8."""
    return widen_halves(builder, read(builder, address, ir.VectorType(I16, 8)))


def _widen_bf16(builder, bits):
    """Return bfloat16 as f32, whose upper halves they are."""
    _, i32, _, f32 = _types_like(bits.type)
    return builder.bitcast(builder.shl(builder.zext(bits, i32), _constant(i32, 16)), f32)


@lowered(types.float32(types.intp))
def load_bf16(builder, address):
    """Load one bfloat16 as f32."""
    return _widen_bf16(builder, read(builder, address, I16))


@lowered(f32x8(types.intp))
def load_bf16x8(builder, address):
    """Load eight bfloat16 as f32x8."""
    return _widen_bf16(builder, read(builder, address, ir.VectorType(I16, 8)))


def _narrow_float(builder, value):
    """Return the f16 bit pattern of an f32, rounded to nearest, ties to even."""
    if level.HAS_F16C:
        return builder.bitcast(builder.fptrunc(value, ir.HalfType()), I16)
    bits = builder.bitcast(value, I32)
    sign = builder.lshr(builder.and_(bits, I32(0x80000000)), I32(16))
    magnitude = builder.and_(bits, I32(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, I32(13)), I32(1))
    rounded = builder.lshr(
        builder.add(builder.add(magnitude, odd), I32(0xFFF - (112 << 23))), I32(13)
    )
    # below 2^-14 the addition of 0.5 lets the float unit do the rounding at the subnormal step of
    # 2^-24
    shifted = builder.bitcast(builder.fadd(builder.bitcast(magnitude, F32), F32(0.5)), I32)
    small = builder.icmp_unsigned("<", magnitude, I32(0x38800000))
    half = builder.select(small, builder.sub(shifted, I32(0x3F000000)), rounded)
    nan = builder.icmp_unsigned(">", magnitude, I32(0x7F800000))
    large = builder.icmp_unsigned(">=", magnitude, I32(0x477FF000))
    half = builder.select(large, builder.select(nan, I32(0x7E00), I32(0x7C00)), half)
    return builder.trunc(builder.or_(half, sign), I16)


@lowered(types.void(types.intp, types.float32))
def store_f16(builder, address, x):
    """Write an f32 as f16."""
    write(builder, _narrow_float(builder, x), address)


@lowered(types.float32(types.float32))
def round_to_f16(builder, x):
    """Return the f32 nearest to x that an f16 can hold."""
    return widen_halves(builder, _narrow_float(builder, x))


def _prefetch(locality):
    @lowered(types.void(types.intp))
    def prefetch(builder, address):
        """Prefetch the cache line of an address; any address is allowed."""
        hint = [I32(x) for x in (0, locality, 1)]
        call(
            builder,
            "llvm.prefetch.p0",
            ir.VoidType(),
            [builder.inttoptr(address, I8.as_pointer()), *hint],
        )

    return prefetch


prefetch_l1, prefetch_l2, prefetch_once = map(_prefetch, (3, 2, 0))


@lowered(types.int64(types.intp, types.int64))
def atomic_add(builder, address, x):
    """Add to an aligned int64 atomically; return its old value."""
    return builder.atomic_rmw("add", builder.inttoptr(address, I64.as_pointer()), x, "seq_cst")


@lowered(types.int64(types.intp))
def atomic_load(builder, address):
    """Read an aligned int64 that another thread may write."""
    return builder.load_atomic(builder.inttoptr(address, I64.as_pointer()), "seq_cst", 8)


@lowered(types.void(types.intp, types.int64))
def atomic_store(builder, address, x):
    """Write an aligned int64 that other threads read."""
    builder.store_atomic(x, builder.inttoptr(address, I64.as_pointer()), "seq_cst", 8)


@lowered(types.void(*[types.intp] * 4))
def call_kernel(builder, kernel, op, thread, n_threads):
    """Call a compiled operation by its address."""
    kernel_type = ir.FunctionType(ir.VoidType(), [I64, I64, I64])
    builder.call(builder.inttoptr(kernel, kernel_type.as_pointer()), [op, thread, n_threads])


@lowered(types.void())
def pause(builder):
    """Tell the core that this is a spin loop."""
    if level.HAS_X86:
        call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
    elif (
        level.HAS_ARM64
    ):  # ``yield`` does nothing on most cores; this waits until the pipeline is empty
        call(builder, "llvm.aarch64.isb", ir.VoidType(), [I32(15)])


NOMINAL_HZ = 2_500_000_000


@lowered(types.int64())
def cycles(builder):
    """Return the processor's cycle counter; on ARM64 its clock, as cycles of ``NOMINAL_HZ``."""
    count = call(builder, "llvm.readcyclecounter", I64, [])
    if not level.HAS_ARM64:
        return count
    # Some firmware leaves the rate 0. Differences of products are right even if the products
    # overflow. numba has no parser for inline assembly.
    name = builder.module.add_metadata(["CNTFRQ_EL0"])
    rate = call(builder, "llvm.read_register.i64", I64, [name])
    rate_or_one = builder.select(builder.icmp_unsigned("==", rate, I64(0)), I64(1), rate)
    return builder.mul(count, builder.udiv(I64(NOMINAL_HZ), rate_or_one))


_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT_PRIVATE = 128
_FUTEX_WAKE_PRIVATE = 129


def _futex_number() -> int | None:
    import platform

    return _FUTEX_NUMBER.get(platform.machine()) if sys.platform == "linux" else None


FUTEX = _futex_number()


def _futex(builder, address, operation, value):
    """Call libc's variadic ``syscall``."""
    function_type = ir.FunctionType(I64, [I64], var_arg=True)
    function = builder.module.globals.get("syscall") or ir.Function(
        builder.module, function_type, "syscall"
    )
    builder.call(function, [I64(FUTEX), address, I64(operation), value, I64(0), I64(0), I64(0)])


@lowered(types.void(types.intp, types.int64))
def sleep_while_equal(builder, address, expected):
    """Sleep until woken if the low 32 bits at an aligned address equal ``expected``; may return
    early."""
    if FUTEX is None:
        call(builder, "usleep", I32, [I32(200)])
    else:
        _futex(builder, address, _FUTEX_WAIT_PRIVATE, expected)


@lowered(types.void(types.intp))
def wake_all(builder, address):
    """Wake every thread that sleeps on this address."""
    if FUTEX is not None:
        _futex(builder, address, _FUTEX_WAKE_PRIVATE, I64(2**31 - 1))


MADV_WILL_NEED = getattr(mmap, "MADV_WILLNEED", None)
MADV_PAGE_OUT = 21 if sys.platform == "linux" else None
"""Advice of Linux 5.4, for which Python has no name.

Older versions refuse it. It is ignored for a file of another user.
"""
PAGE_BYTES = mmap.PAGESIZE


def _advise(number):
    @lowered(types.void(types.intp, types.intp))
    def advise(builder, address, n_bytes):
        """Advise the system about mapped pages; ``address`` is that of a page."""
        if number is not None:
            call(builder, "madvise", I32, [address, n_bytes, I32(int(number))])

    return advise


prefetch_pages = _advise(MADV_WILL_NEED)
drop_pages = _advise(MADV_PAGE_OUT)
"""Advice that pages are needed soon, or that the system may drop pages of a file.

Pages that another program uses stay.
"""

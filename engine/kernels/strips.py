"""Strips of 32 f32 in registers: four of 256 bits, or two of 512 if the processor has them.

Lanes are independent, so both give the same results.
"""

from engine import simd as vec
from engine.jit import inner
from engine.machine.level import HAS_VNNI_512


@inner
def zero_strip_of_four():
    """Return 32 zeros."""
    zero = vec.splat_f32x8(0.0)
    return zero, zero, zero, zero


@inner
def load_strip_of_four(address):
    """Read a strip."""
    return (
        vec.load_f32x8(address),
        vec.load_f32x8(address + 32),
        vec.load_f32x8(address + 64),
        vec.load_f32x8(address + 96),
    )


@inner
def store_strip_of_four(address, s):
    """Write a strip."""
    s0, s1, s2, s3 = s
    vec.store_f32x8(address, s0)
    vec.store_f32x8(address + 32, s1)
    vec.store_f32x8(address + 64, s2)
    vec.store_f32x8(address + 96, s3)


@inner
def minus_of_four(a, b):
    """Return a - b."""
    (a0, a1, a2, a3) = a
    (b0, b1, b2, b3) = b
    return vec.fsub(a0, b0), vec.fsub(a1, b1), vec.fsub(a2, b2), vec.fsub(a3, b3)


@inner
def times_of_four(x, s):
    """Return a number times a strip."""
    (s0, s1, s2, s3) = s
    x = vec.splat_f32x8(x)
    return vec.fmul(x, s0), vec.fmul(x, s1), vec.fmul(x, s2), vec.fmul(x, s3)


@inner
def plus_times_of_four(a, x, s):
    """Return a + x s."""
    (a0, a1, a2, a3) = a
    (s0, s1, s2, s3) = s
    x = vec.splat_f32x8(x)
    return vec.fma(x, s0, a0), vec.fma(x, s1, a1), vec.fma(x, s2, a2), vec.fma(x, s3, a3)


@inner
def zero_strip_of_two():
    """Return 32 zeros."""
    return vec.splat_f32x16(0.0), vec.splat_f32x16(0.0)


@inner
def load_strip_of_two(address):
    """Read a strip."""
    return vec.load_f32x16(address), vec.load_f32x16(address + 64)


@inner
def store_strip_of_two(address, s):
    """Write a strip."""
    s0, s1 = s
    vec.store_f32x16(address, s0)
    vec.store_f32x16(address + 64, s1)


@inner
def minus_of_two(a, b):
    """Return a - b."""
    (a0, a1) = a
    (b0, b1) = b
    return vec.fsub(a0, b0), vec.fsub(a1, b1)


@inner
def times_of_two(x, s):
    """Return a number times a strip."""
    (s0, s1) = s
    x = vec.splat_f32x16(x)
    return vec.fmul(x, s0), vec.fmul(x, s1)


@inner
def plus_times_of_two(a, x, s):
    """Return a + x s."""
    (a0, a1) = a
    (s0, s1) = s
    x = vec.splat_f32x16(x)
    return vec.fma(x, s0, a0), vec.fma(x, s1, a1)


zero_strip = zero_strip_of_two if HAS_VNNI_512 else zero_strip_of_four
load_strip, store_strip = (
    (load_strip_of_two, store_strip_of_two)
    if HAS_VNNI_512
    else (load_strip_of_four, store_strip_of_four)
)
minus = minus_of_two if HAS_VNNI_512 else minus_of_four
times = times_of_two if HAS_VNNI_512 else times_of_four
plus_times = plus_times_of_two if HAS_VNNI_512 else plus_times_of_four

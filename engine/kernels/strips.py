"""A strip of 32 float32 in registers: four of 256 bits, or two of 512 where the processor has them. No lane knows of
another, so the results are the same.
"""

from engine.jit import inner
from engine.machine.level import HAS_VNNI_512
from engine.simd import (
    fma,
    fmul,
    fsub,
    load_f32x8,
    load_f32x16,
    splat_f32x8,
    splat_f32x16,
    store_f32x8,
    store_f32x16,
)


@inner
def no_strip_of_four():
    """32 zeros."""
    zero = splat_f32x8(0.0)
    return zero, zero, zero, zero


@inner
def load_strip_of_four(at):
    """Read a strip."""
    return load_f32x8(at), load_f32x8(at + 32), load_f32x8(at + 64), load_f32x8(at + 96)


@inner
def store_strip_of_four(at, s):
    """Write a strip."""
    s0, s1, s2, s3 = s
    store_f32x8(at, s0)
    store_f32x8(at + 32, s1)
    store_f32x8(at + 64, s2)
    store_f32x8(at + 96, s3)


@inner
def minus_of_four(a, b):
    """a - b."""
    (a0, a1, a2, a3), (b0, b1, b2, b3) = a, b
    return fsub(a0, b0), fsub(a1, b1), fsub(a2, b2), fsub(a3, b3)


@inner
def times_of_four(x, s):
    """A number times a strip."""
    (s0, s1, s2, s3), x = s, splat_f32x8(x)
    return fmul(x, s0), fmul(x, s1), fmul(x, s2), fmul(x, s3)


@inner
def plus_times_of_four(a, x, s):
    """a + x s."""
    (a0, a1, a2, a3), (s0, s1, s2, s3), x = a, s, splat_f32x8(x)
    return fma(x, s0, a0), fma(x, s1, a1), fma(x, s2, a2), fma(x, s3, a3)


@inner
def no_strip_of_two():
    """32 zeros."""
    return splat_f32x16(0.0), splat_f32x16(0.0)


@inner
def load_strip_of_two(at):
    """Read a strip."""
    return load_f32x16(at), load_f32x16(at + 64)


@inner
def store_strip_of_two(at, s):
    """Write a strip."""
    s0, s1 = s
    store_f32x16(at, s0)
    store_f32x16(at + 64, s1)


@inner
def minus_of_two(a, b):
    """a - b."""
    (a0, a1), (b0, b1) = a, b
    return fsub(a0, b0), fsub(a1, b1)


@inner
def times_of_two(x, s):
    """A number times a strip."""
    (s0, s1), x = s, splat_f32x16(x)
    return fmul(x, s0), fmul(x, s1)


@inner
def plus_times_of_two(a, x, s):
    """a + x s."""
    (a0, a1), (s0, s1), x = a, s, splat_f32x16(x)
    return fma(x, s0, a0), fma(x, s1, a1)


no_strip = no_strip_of_two if HAS_VNNI_512 else no_strip_of_four
load_strip, store_strip = (
    (load_strip_of_two, store_strip_of_two) if HAS_VNNI_512 else (load_strip_of_four, store_strip_of_four)
)
minus = minus_of_two if HAS_VNNI_512 else minus_of_four
times = times_of_two if HAS_VNNI_512 else times_of_four
plus_times = plus_times_of_two if HAS_VNNI_512 else plus_times_of_four

"""A strip of 32 float32 in registers: four of 256 bits, or two of 512 where the processor has them.
No lane knows of another, so the results are the same.
"""

from engine import simd as vec
from engine.jit import inner
from engine.machine.level import HAS_VNNI_512


@inner
def no_strip_of_four():
    """32 zeros."""
    zero = vec.splat_f32x8(0.0)
    return zero, zero, zero, zero


@inner
def load_strip_of_four(at):
    """Read a strip."""
    return (
        vec.load_f32x8(at),
        vec.load_f32x8(at + 32),
        vec.load_f32x8(at + 64),
        vec.load_f32x8(at + 96),
    )


@inner
def store_strip_of_four(at, s):
    """Write a strip."""
    s0, s1, s2, s3 = s
    vec.store_f32x8(at, s0)
    vec.store_f32x8(at + 32, s1)
    vec.store_f32x8(at + 64, s2)
    vec.store_f32x8(at + 96, s3)


@inner
def minus_of_four(a, b):
    """a - b."""
    (a0, a1, a2, a3) = a
    (b0, b1, b2, b3) = b
    return vec.fsub(a0, b0), vec.fsub(a1, b1), vec.fsub(a2, b2), vec.fsub(a3, b3)


@inner
def times_of_four(x, s):
    """A number times a strip."""
    (s0, s1, s2, s3) = s
    x = vec.splat_f32x8(x)
    return vec.fmul(x, s0), vec.fmul(x, s1), vec.fmul(x, s2), vec.fmul(x, s3)


@inner
def plus_times_of_four(a, x, s):
    """a + x s."""
    (a0, a1, a2, a3) = a
    (s0, s1, s2, s3) = s
    x = vec.splat_f32x8(x)
    return vec.fma(x, s0, a0), vec.fma(x, s1, a1), vec.fma(x, s2, a2), vec.fma(x, s3, a3)


@inner
def no_strip_of_two():
    """32 zeros."""
    return vec.splat_f32x16(0.0), vec.splat_f32x16(0.0)


@inner
def load_strip_of_two(at):
    """Read a strip."""
    return vec.load_f32x16(at), vec.load_f32x16(at + 64)


@inner
def store_strip_of_two(at, s):
    """Write a strip."""
    s0, s1 = s
    vec.store_f32x16(at, s0)
    vec.store_f32x16(at + 64, s1)


@inner
def minus_of_two(a, b):
    """a - b."""
    (a0, a1) = a
    (b0, b1) = b
    return vec.fsub(a0, b0), vec.fsub(a1, b1)


@inner
def times_of_two(x, s):
    """A number times a strip."""
    (s0, s1) = s
    x = vec.splat_f32x16(x)
    return vec.fmul(x, s0), vec.fmul(x, s1)


@inner
def plus_times_of_two(a, x, s):
    """a + x s."""
    (a0, a1) = a
    (s0, s1) = s
    x = vec.splat_f32x16(x)
    return vec.fma(x, s0, a0), vec.fma(x, s1, a1)


no_strip = no_strip_of_two if HAS_VNNI_512 else no_strip_of_four
load_strip, store_strip = (
    (load_strip_of_two, store_strip_of_two)
    if HAS_VNNI_512
    else (load_strip_of_four, store_strip_of_four)
)
minus = minus_of_two if HAS_VNNI_512 else minus_of_four
times = times_of_two if HAS_VNNI_512 else times_of_four
plus_times = plus_times_of_two if HAS_VNNI_512 else plus_times_of_four

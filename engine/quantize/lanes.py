"""Eight blocks at a time, one in each lane of a register, so sums of a block need no sum over
lanes.

The values of a group are transposed: value i of all eight blocks is one register. They are in the
thread's scratch; if a type has sixteen sub-blocks, the last eight are after the first eight.
"""

from llvmlite import ir
from numba.extending import intrinsic

from engine import simd as vec
from engine.jit import inner
from engine.simd.types import call

VALUES = 0
WEIGHTS = 1024
CODES = 2048
SCALES, MINIMA, XQ, Q_SUM, QQ = range(3072, 3392, 64)
SCRATCH_BYTES = 3392
"""Bytes of a thread's scratch.

It holds 256 values, their weights and codes, and scales, minima and sums of 16 blocks; all float32.
"""

TINY = 1e-15
"""Largest magnitude of a block that is stored as zeros. Source: ggml-quants.c, GROUP_MAX_EPS."""
_MAGIC = 12582912.0
"""Number whose unit in the last place is one, so adding it rounds to the nearest integer: 1.5 *
2^23."""


@intrinsic
def where_above(typingctx, a, b, x, y):
    """Return x where a > b, else y, lane by lane; y where one is NaN."""

    def emit(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), args[2], args[3])

    return x(a, a, x, x), emit


@intrinsic
def root(typingctx, a):
    """Return square roots."""

    def emit(context, builder, signature, args):
        return call(builder, f"llvm.sqrt.v{a.n}f32", ir.VectorType(ir.FloatType(), a.n), args)

    return a(a), emit


@inner
def nearest(v, least, most):
    """Return the nearest integers within limits, as f32; v must be within 2^22."""
    magic = vec.splat_f32x8(_MAGIC)
    return vec.fmin(vec.fmax(vec.fsub(vec.fadd(v, magic), magic), least), most)


@inner
def inverse(v):
    """Return 1 / v, and 0 where v is 0."""
    zero = vec.splat_f32x8(0.0)
    return where_above(vec.fabs(v), zero, vec.fdiv(vec.splat_f32x8(1.0), v), zero)


@inner
def transpose_blocks(source, first, n_blocks, n, out):
    """Transpose the n values each of eight blocks, ``first`` and those after it, modulo
    ``n_blocks``."""
    for lane in range(8):
        block = source + 4 * n * ((first + lane) % n_blocks)
        for i in range(n):
            vec.store_f32(out + 32 * i + 4 * lane, vec.load_f32(block + 4 * i))


@inner
def lane(address, k):
    """Return number k in memory, as an integer."""
    return int(vec.load_f32(address + 4 * k))


@inner
def code(scratch, size, k):
    """Return the code of value k, of blocks of ``size`` values."""
    block = k // size
    i = k % size
    return lane(scratch + CODES + 32 * size * (block >> 3), 8 * i + (block & 7))

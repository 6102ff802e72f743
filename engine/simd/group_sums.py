"""Products of bytes summed over groups of weights, a lane for each group: the basis of decode on
ARM64.

ARM64 adds neighbouring lanes of two registers into one. So four groups leave one register with a
lane each, which is multiplied by their scales without spreading these. On other processors the
operations are correct but slow.
"""

import functools

from llvmlite import ir

from engine.machine import level
from engine.simd.arith import fold, in_halves, neon
from engine.simd.types import I32, i8x32, i16x8, i32x4, lowered, vector_of


def _paired(builder, name, result, sums):
    """Add neighbouring lanes of two registers into one."""
    return [neon(builder, name, result, *sums[k : k + 2]) for k in range(0, len(sums), 2)]


def _cut(builder, first, second):
    """Return pairs of the halves of one register and those of another."""
    return list(zip(in_halves(builder, first), in_halves(builder, second), strict=True))


def _dotprod_sum(builder, pairs):
    """Return the sums of one group as i32x4, with an instruction for four products."""
    total = i32x4.constant([0] * 4)
    for w, y in pairs:
        total = neon(builder, "sdot.v4i32.v16i8", i32x4, total, w, y)
    return total


def _sums_i16(builder, pairs, fitting):
    """Return the sums of one group as i16x8, each of as many products as fit, in one or two
    registers."""
    products = [
        neon(builder, "smull.v8i16", i16x8, *cut) for w, y in pairs for cut in _cut(builder, w, y)
    ]
    return [
        functools.reduce(builder.add, products[first : first + fitting])
        for first in range(0, len(products), fitting)
    ]


def _arm64_sums(builder, groups, fitting):
    """Return the sums of four groups as i32x4.

    Args:
        groups: Pairs of i8x16 for each group: weights and activations.
        fitting: Products that may be added in an int16.
    """
    if level.HAS_DOTPROD:
        sums = [_dotprod_sum(builder, pairs) for pairs in groups]
    else:
        narrow = [_sums_i16(builder, pairs, fitting) for pairs in groups]
        n = min(2 * len(groups[0]), fitting)
        while 2 * n <= fitting and len(narrow) > 1:
            narrow = [
                [register]
                for register in _paired(
                    builder, "addp.v8i16", i16x8, [register for (register,) in narrow]
                )
            ]
            n *= 2
        wide = [
            [neon(builder, "saddlp.v4i32.v8i16", i32x4, register) for register in group]
            for group in narrow
        ]
        sums = [functools.reduce(builder.add, group) for group in wide]
    while len(sums) > 1:
        sums = _paired(builder, "addp.v4i32", i32x4, sums)
    return sums[0]


def _portable_sums(builder, groups):
    """Return the sums of four groups as i32x4 on other processors."""
    words = ir.VectorType(I32, 16)
    totals = []
    for pairs in groups:
        products = [builder.mul(builder.sext(w, words), builder.sext(y, words)) for w, y in pairs]
        totals.append(fold(builder, functools.reduce(builder.add, products), builder.add))
    return vector_of(builder, i32x4.ir, totals)


def _sums(size, fitting):
    """Make the operation on as many registers as hold four groups of ``size`` bytes."""
    n = size // 8

    def sums(builder, args):
        pairs = [
            cut for w, y in zip(args[:n], args[n:], strict=True) for cut in _cut(builder, w, y)
        ]
        groups = [pairs[k : k + size // 16] for k in range(0, len(pairs), size // 16)]
        return (
            _arm64_sums(builder, groups, fitting)
            if level.HAS_ARM64
            else _portable_sums(builder, groups)
        )

    @lowered(i32x4(*[i8x32] * (2 * n)))
    def sums_of_16(builder, w0, w1, y0, y1):
        """Return the sums of each sixteen products of signed bytes, a lane each."""
        return sums(builder, (w0, w1, y0, y1))

    @lowered(i32x4(*[i8x32] * (2 * n)))
    def sums_of_32(builder, w0, w1, w2, w3, y0, y1, y2, y3):
        """Return the sums of each 32 products of signed bytes, a lane each."""
        return sums(builder, (w0, w1, w2, w3, y0, y1, y2, y3))

    return sums_of_16 if size == 16 else sums_of_32


sums_of_32_u4 = _sums(32, 16)
sums_of_32_u5 = _sums(32, 8)
sums_of_32_i8 = _sums(32, 2)
"""Sums for weights from 0 to 15, from 0 to 31, or any; activations are from -127 to 127."""
sums_of_16_u6 = _sums(16, 4)
"""Sums for weights from 0 to 63."""

"""Vector registers as numba types.

A value of ``i8x32`` is one LLVM vector and so lives in a register, never in memory. On processors with narrower
registers LLVM splits it; only the target's own instructions need a lowering by hand (see ``level``).
"""

from llvmlite import ir
from numba import types
from numba.extending import models, register_model

from engine.machine import level

LANES = {
    "i8": ir.IntType(8),
    "i16": ir.IntType(16),
    "i32": ir.IntType(32),
    "f16": ir.HalfType(),
    "f32": ir.FloatType(),
}
_WHOLE = ("i8", "i16", "i32")


class Vec(types.Type):
    """The numba type of one register: ``n`` lanes of ``lane``."""

    def __init__(self, lane: str, n: int) -> None:
        self.lane = lane
        self.n = n
        self.ir = ir.VectorType(LANES[lane], n)
        super().__init__(name=f"vec<{n} x {lane}>")

    @property
    def is_split(self) -> bool:
        """True for 256-bit integers on a processor without AVX2, which computes on 128 bits at a time.

        With AVX alone, LLVM would keep them in 256-bit registers for logical operations and split them for all others.
        """
        return self.lane in _WHOLE and self.n * self.ir.element.width == 256 and not level.HAS_AVX2

    def constant(self, lanes):
        """An IR constant with the given lanes."""
        return ir.Constant(self.ir, list(lanes))


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.ir)


i8x16, i16x8, i32x4, f32x4 = Vec("i8", 16), Vec("i16", 8), Vec("i32", 4), Vec("f32", 4)
i8x32, i16x16, i32x8, f32x8 = Vec("i8", 32), Vec("i16", 16), Vec("i32", 8), Vec("f32", 8)
i8x64, i16x32, i32x16, f32x16 = Vec("i8", 64), Vec("i16", 32), Vec("i32", 16), Vec("f32", 16)

SCALAR = {"i8": types.int8, "i16": types.int16, "i32": types.int32, "f32": types.float32}
I32 = ir.IntType(32)
I64 = ir.IntType(64)


def shuffle(builder, vector, lanes):
    """Pick lanes of one vector, or of two given as a pair."""
    first, second = vector if isinstance(vector, tuple) else (vector, ir.Constant(vector.type, ir.Undefined))
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))


def call(builder, name, result, arguments):
    """Call an LLVM intrinsic or C function by name."""
    from numba.core import cgutils

    kind = ir.FunctionType(result, [a.type for a in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)

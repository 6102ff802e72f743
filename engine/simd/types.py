"""Vector registers as numba types.

A value of ``i8x32`` is one LLVM vector and so lives in a register, never in memory. On processors
with narrower registers LLVM splits it; only the target's own instructions need a lowering by hand
(see ``level``).
"""

from functools import wraps

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from engine.machine import level

I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
F32 = ir.FloatType()
LANES = {"i8": I8, "i16": I16, "i32": I32, "f16": ir.HalfType(), "f32": F32}


class Vec(types.Type):
    """The numba type of one register: ``n`` lanes of ``lane``."""

    def __init__(self, lane: str, n: int) -> None:
        self.lane = lane
        self.n = n
        self.ir = ir.VectorType(LANES[lane], n)
        super().__init__(name=f"vec<{n} x {lane}>")

    def constant(self, lanes):
        """An IR constant with the given lanes."""
        return ir.Constant(self.ir, list(lanes))


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.ir)


i8x16 = Vec("i8", 16)
i16x8 = Vec("i16", 8)
i32x4 = Vec("i32", 4)
f32x4 = Vec("f32", 4)
i8x32 = Vec("i8", 32)
i16x16 = Vec("i16", 16)
i32x8 = Vec("i32", 8)
f32x8 = Vec("f32", 8)
i8x64 = Vec("i8", 64)
i16x32 = Vec("i16", 32)
i32x16 = Vec("i32", 16)
f32x16 = Vec("f32", 16)

SCALAR = {"i8": types.int8, "i16": types.int16, "i32": types.int32, "f32": types.float32}


def lowered(typed):
    """Make an operation of a function that writes its instructions: (builder, *values) -> value, or
    None for void.

    Args:
        typed: numba's signature of the operation, or what returns it for the types of its
            arguments.
    """

    def operation(body):
        @wraps(body)
        def typing(typingctx, *kinds):
            def emit(context, builder, signature, args):
                value = body(builder, *args)
                return context.get_dummy_value() if value is None else value

            return typed(*kinds) if callable(typed) else typed, emit

        return intrinsic(typing)

    return operation


def is_split(kind):
    """Whether a register is of 256-bit integers and the processor has no AVX2, and so computes on
    128 bits at a time.

    With AVX alone, LLVM would keep them in 256-bit registers for logical operations and split them
    for all others.
    """
    return (
        isinstance(kind.element, ir.IntType)
        and kind.count * kind.element.width == 256
        and not level.HAS_AVX2
    )


def read(builder, address, kind):
    """Load a value of an LLVM type from an address of any alignment."""
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    loaded.align = 1
    return loaded


def write(builder, value, address):
    """Store a value to an address of any alignment."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 1


def put_together(builder, kind, lanes):
    """A vector of an LLVM type of values for its first lanes."""
    v = ir.Constant(kind, ir.Undefined)
    for k, lane in enumerate(lanes):
        v = builder.insert_element(v, lane, ir.Constant(I32, k))
    return v


def splat(builder, scalar, kind):
    """A vector of an LLVM type with the same value in every lane."""
    return shuffle(builder, put_together(builder, kind, [scalar]), [0] * kind.count)


def shuffle(builder, vector, lanes):
    """Pick lanes of one vector, or of two given as a pair."""
    first, second = (
        vector if isinstance(vector, tuple) else (vector, ir.Constant(vector.type, ir.Undefined))
    )
    return builder.shuffle_vector(
        first, second, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
    )


def call(builder, name, result, arguments):
    """Call an LLVM intrinsic or C function by name."""
    from numba.core import cgutils

    kind = ir.FunctionType(result, [a.type for a in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)

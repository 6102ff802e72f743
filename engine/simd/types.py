"""Vector registers as numba types.

A value of ``i8x32`` is one LLVM vector, so it lives in a register, never in memory. On processors
with narrower registers LLVM splits it; only a processor's own instructions need a lowering by hand
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
    """Numba type of one register: ``n`` lanes of ``lane``."""

    def __init__(self, lane: str, n: int) -> None:
        self.lane = lane
        self.n = n
        self.ir = ir.VectorType(LANES[lane], n)
        super().__init__(name=f"vec<{n} x {lane}>")

    def constant(self, lanes):
        """Return an IR constant with the given lanes."""
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


def lowered(signature_of):
    """Make an operation from a function that writes its instructions: (builder, *values) -> value
    or None.

    Args:
        signature_of: Numba's signature of the operation, or a function that returns it for the
            types of the arguments.
    """

    def operation(body):
        @wraps(body)
        def typing(typingctx, *argument_types):
            def emit(context, builder, signature, args):
                value = body(builder, *args)
                return context.get_dummy_value() if value is None else value

            return signature_of(*argument_types) if callable(signature_of) else signature_of, emit

        return intrinsic(typing)

    return operation


def is_split(vector_type):
    """Return whether a register has 256-bit integers and the processor has no AVX2.

    Its operations are then on 128 bits at a time. With AVX alone, LLVM would use 256-bit registers
    for logical operations and split them for all others.
    """
    return (
        isinstance(vector_type.element, ir.IntType)
        and vector_type.count * vector_type.element.width == 256
        and not level.HAS_AVX2
    )


def read(builder, address, ir_type):
    """Load a value of an LLVM type from an address of any alignment."""
    loaded = builder.load(builder.inttoptr(address, ir_type.as_pointer()))
    loaded.align = 1
    return loaded


def write(builder, value, address):
    """Store a value to an address of any alignment."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 1


def vector_of(builder, ir_type, lanes):
    """Return a vector of an LLVM type, with values for its first lanes."""
    v = ir.Constant(ir_type, ir.Undefined)
    for k, lane in enumerate(lanes):
        v = builder.insert_element(v, lane, ir.Constant(I32, k))
    return v


def splat(builder, scalar, ir_type):
    """Return a vector of an LLVM type with the same value in every lane."""
    return shuffle(builder, vector_of(builder, ir_type, [scalar]), [0] * ir_type.count)


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

    function_type = ir.FunctionType(result, [a.type for a in arguments])
    return builder.call(
        cgutils.get_or_insert_function(builder.module, function_type, name), arguments
    )

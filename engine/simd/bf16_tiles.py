"""Products of bfloat16 in tile registers (AMX), and rounding to bfloat16.

Source of the encoding and of the layouts: Intel's manual of the architecture, volume 2, TDPBF16PS.
Kernels that use this module import it themselves.
"""

from llvmlite import ir
from llvmlite.binding import initialize_native_asmparser
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from engine.simd.types import I8, I32, f32x8, f32x16, lowered, write

initialize_native_asmparser()

N_TILES = 8
LINES = 16
LINE_BYTES = 64


def _configuration() -> bytearray:
    """Return the operand of ``ldtilecfg``: palette 1, and all registers as large as possible."""
    operand = bytearray(64)
    operand[0] = 1
    for n in range(N_TILES):
        operand[16 + 2 * n] = LINE_BYTES
        operand[48 + n] = LINES
    return operand


@lowered(types.none())
def shape_full_tiles(builder):
    """Give each of the thread's tile registers sixteen lines of 64 bytes."""
    value = ir.Constant(ir.ArrayType(I8, 64), _configuration())
    constant = cgutils.global_constant(builder.module, "full_tile_shapes", value)
    function_type = ir.FunctionType(ir.VoidType(), [I8.as_pointer()])
    shape = cgutils.get_or_insert_function(builder.module, function_type, "llvm.x86.ldtilecfg")
    builder.call(shape, [builder.bitcast(constant, I8.as_pointer())])


@intrinsic(prefer_literal=True)
def multiply_bf16_tiles(typingctx, sums, lines, groups):
    """Add bfloat16 of lines times bfloat16 of groups to the f32 of sums, two products at a time.

    The instruction is written as bytes: LLVM is told the features that all processors of a level
    share, and this one is not among those of AMX.
    """
    if not all(isinstance(register, types.IntegerLiteral) for register in (sums, lines, groups)):
        return None

    def emit(context, builder, signature, args):
        target, first, second = (register.literal_value for register in (sums, lines, groups))
        code = 0xC4, 0xE2, (~second & 15) << 3 | 2, 0x5C, 0xC0 | target << 3 | first
        text = ".byte " + ", ".join(map(hex, code))
        function_type = ir.FunctionType(ir.VoidType(), [])
        builder.call(ir.InlineAsm(function_type, text, "", side_effect=True), [])
        return context.get_dummy_value()

    return types.none(sums, lines, groups), emit


def _rounded_bits(builder, x):
    """Return the bits of f32 rounded to bfloat16, ties away from zero."""
    integers = ir.VectorType(I32, x.type.count)
    bits = builder.bitcast(x, integers)
    half = ir.Constant(integers, [0x8000] * integers.count)
    upper = ir.Constant(integers, [0xFFFF0000] * integers.count)
    return builder.and_(builder.add(bits, half), upper)


@lowered(lambda x: x(x))
def round_to_bf16(builder, x):
    """Round each f32 to the nearest bfloat16, ties away from zero."""
    return builder.bitcast(_rounded_bits(builder, x), x.type)


def _store_pairs(builder, address, first, second):
    """Write the upper halves of two registers of bits by turns; lower halves are zero."""
    shift = ir.Constant(first.type, [16] * first.type.count)
    write(builder, builder.or_(builder.lshr(first, shift), second), address)


@lowered(lambda address, even, odd: types.void(types.intp, even, even))
def store_bf16_pairs(builder, address, even, odd):
    """Write lanes of two registers by turns, each rounded to bfloat16."""
    _store_pairs(builder, address, _rounded_bits(builder, even), _rounded_bits(builder, odd))


@lowered(lambda address, even, odd: types.void(types.intp, even, even))
def store_rounded_pairs(builder, address, even, odd):
    """Write lanes of two registers by turns, which ``round_to_bf16`` has rounded."""
    integers = ir.VectorType(I32, even.type.count)
    _store_pairs(builder, address, builder.bitcast(even, integers), builder.bitcast(odd, integers))


def _store_bf16(vector):
    @lowered(types.void(types.intp, vector))
    def store_bf16(builder, address, x):
        """Write a register, rounded to bfloat16."""
        bits = _rounded_bits(builder, x)
        shift = ir.Constant(bits.type, [16] * bits.type.count)
        halves = ir.VectorType(ir.IntType(16), bits.type.count)
        write(builder, builder.trunc(builder.lshr(bits, shift), halves), address)

    return store_bf16


store_bf16x8, store_bf16x16 = map(_store_bf16, (f32x8, f32x16))

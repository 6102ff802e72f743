"""Registers of sixteen lines of up to 64 bytes, and their products: AMX of x86-64, if Linux permits
it (``level``).

The lines of one operand are rows of a matrix. Those of the other are groups of four rows, sixteen
columns side by side: ``[group][16 rows][4 bytes]`` in ``tiles``. Source: Intel's manual of the
architecture, volume 1, chapter 18.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from engine.simd.types import I8, lowered

SUMS = 0
MORE_SUMS = 1
LINES_64 = 2
GROUPS_64 = 3
LINES_32 = 4
GROUPS_32 = 5
LINES_16 = 6
GROUPS_16 = 7
"""Numbers of the registers: sums, int32 ``[16 tokens][16 rows]``, and operands of 64, 32 and 16
weights."""
_SHAPES = ((16, 64), (16, 64), (16, 64), (16, 64), (16, 32), (8, 64), (16, 16), (4, 64))
"""Lines of each register, and bytes of a line."""


def _configuration() -> bytearray:
    """Return the operand of ``ldtilecfg``.

    It holds palette 1, bytes of a line from byte 16 on, and lines from byte 48 on.
    """
    operand = bytearray(64)
    operand[0] = 1
    for n, (lines, line_bytes) in enumerate(_SHAPES):
        operand[16 + 2 * n] = line_bytes
        operand[48 + n] = lines
    return operand


def _call(builder, name, *args):
    function_type = ir.FunctionType(ir.VoidType(), [arg.type for arg in args])
    builder.call(
        cgutils.get_or_insert_function(builder.module, function_type, f"llvm.x86.{name}"), args
    )


def _number(tile):
    return ir.Constant(I8, tile.literal_value)


@lowered(types.none())
def shape_tiles(builder):
    """Give the thread's tile registers their shapes."""
    value = ir.Constant(ir.ArrayType(I8, 64), _configuration())
    constant = cgutils.global_constant(builder.module, "tile_shapes", value)
    _call(builder, "ldtilecfg", builder.bitcast(constant, I8.as_pointer()))


@lowered(types.none())
def release_tiles(builder):
    """Release the registers, so the system need not save them any more."""
    _call(builder, "tilerelease")


@intrinsic(prefer_literal=True)
def clear_tile(typingctx, tile):
    """Set a register to zero."""
    if not isinstance(tile, types.IntegerLiteral):
        return None

    def emit(context, builder, signature, args):
        _call(builder, "tilezero", _number(tile))
        return context.get_dummy_value()

    return types.none(tile), emit


def _move(name):
    @intrinsic(prefer_literal=True)
    def move(typingctx, tile, address, stride):
        """Load or store a register whose lines are ``stride`` bytes apart."""
        if not isinstance(tile, types.IntegerLiteral):
            return None

        def emit(context, builder, signature, args):
            _, address, stride = args
            _call(builder, name, _number(tile), builder.inttoptr(address, I8.as_pointer()), stride)
            return context.get_dummy_value()

        return types.none(tile, types.int64, types.int64), emit

    return move


load_tile = _move("tileloadd64")
store_tile = _move("tilestored64")


@intrinsic(prefer_literal=True)
def multiply_tiles(typingctx, sums, lines, groups):
    """Add signed bytes of lines times signed bytes of groups to the int32 of sums, four products at
    a time."""
    if not all(isinstance(register, types.IntegerLiteral) for register in (sums, lines, groups)):
        return None

    def emit(context, builder, signature, args):
        _call(builder, "tdpbssd", *(_number(register) for register in (sums, lines, groups)))
        return context.get_dummy_value()

    return types.none(sums, lines, groups), emit

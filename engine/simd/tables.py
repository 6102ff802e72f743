"""Tables inside the machine code, and registers gathered from them."""

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from engine.simd.blocks import _read
from engine.simd.types import I64, i8x16, i8x32, shuffle

I8, I16 = ir.IntType(8), ir.IntType(16)


def table(make: Callable[[], bytes]):
    """An intrinsic that returns the address of constant bytes, aligned to a cache line.

    Args:
        make: returns them; called when a kernel is compiled.
    """

    @intrinsic
    def address(typingctx):
        def emit(context, builder, signature, args):
            data = bytearray(make())
            constant = ir.Constant(ir.ArrayType(I8, len(data)), data)
            place = cgutils.global_constant(builder, "table", constant)
            place.align = 64
            return builder.ptrtoint(place, I64)

        return types.int64(), emit

    return address


def _offset(builder, at, k):
    return builder.zext(_read(builder, builder.add(at, ir.Constant(I64, 2 * k)), I16), I64)


@intrinsic
def entries_of_8(typingctx, table, at):
    """Four entries of eight bytes, whose offsets in the table are four u16 at an address."""

    def emit(context, builder, signature, args):
        found = ir.Constant(ir.VectorType(I64, 4), ir.Undefined)
        for k in range(4):
            entry = _read(builder, builder.add(args[0], _offset(builder, args[1], k)), I64)
            found = builder.insert_element(found, entry, ir.Constant(ir.IntType(32), k))
        return builder.bitcast(found, i8x32.ir)

    return i8x32(types.int64, types.int64), emit


@intrinsic
def entries_of_4(typingctx, table, at):
    """Eight entries of four bytes, whose slots of 32 bytes (``Grid.table``) have offsets in eight u16 at an address."""

    def emit(context, builder, signature, args):
        halves = []
        for half in range(2):
            found = i8x16.constant([0] * 16)
            for k in range(4):
                slot = builder.add(args[0], _offset(builder, args[1], 4 * half + k))
                found = builder.or_(found, _read(builder, builder.add(slot, ir.Constant(I64, 12 - 4 * k)), i8x16.ir))
            halves.append(found)
        return shuffle(builder, tuple(halves), range(32))

    return i8x32(types.int64, types.int64), emit

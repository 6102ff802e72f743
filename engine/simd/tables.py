"""Tables inside the machine code, and registers gathered from them."""

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from engine.simd.blocks import _read
from engine.simd.types import I32, I64, i8x32, shuffle

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


def _pair_of(builder, base, offsets):
    """Two entries of eight bytes as a register of 128 bits; as floats, which can be loaded into an upper half."""
    found = ir.Constant(ir.VectorType(ir.DoubleType(), 2), ir.Undefined)
    for k, offset in enumerate(offsets):
        entry = _read(builder, builder.add(base, offset), ir.DoubleType())
        found = builder.insert_element(found, entry, ir.Constant(I32, k))
    return builder.bitcast(found, ir.VectorType(I64, 2))


def _entries_of_8(offset_of):
    @intrinsic
    def entries(typingctx, table, at):
        """Four entries of eight bytes, found by what is at an address."""

        def emit(context, builder, signature, args):
            offsets = [offset_of(builder, args[1], k) for k in range(4)]
            halves = [_pair_of(builder, args[0], offsets[k : k + 2]) for k in (0, 2)]
            return builder.bitcast(shuffle(builder, tuple(halves), range(4)), i8x32.ir)

        return i8x32(types.int64, types.int64), emit

    return entries


def _entries_of_4(offset_of):
    @intrinsic
    def entries(typingctx, table, at, upper):
        """Eight entries of four bytes, found by what is at an address.

        The table holds each in the lower half of eight bytes, and after all of them once more in the upper half:
        registers are put together of eight bytes at a time, and joined by ``or``. ``upper`` is the size of one copy.
        """

        def emit(context, builder, signature, args):
            upper = builder.add(args[0], args[2])
            halves = []
            for first in (0, 4):
                offsets = [offset_of(builder, args[1], first + k) for k in range(4)]
                even, odd = _pair_of(builder, args[0], offsets[::2]), _pair_of(builder, upper, offsets[1::2])
                halves.append(builder.or_(even, odd))
            return builder.bitcast(shuffle(builder, tuple(halves), range(4)), i8x32.ir)

        return i8x32(types.int64, types.int64, types.int64), emit

    return entries


def _by_byte(builder, at, k):
    index = builder.zext(_read(builder, builder.add(at, ir.Constant(I64, k)), I8), I64)
    return builder.shl(index, ir.Constant(I64, 3))


def _by_nine_bits(builder, at, k):
    index = builder.zext(_read(builder, builder.add(at, ir.Constant(I64, 2 * k)), I16), I64)
    return builder.shl(builder.and_(index, ir.Constant(I64, 511)), ir.Constant(I64, 3))


def _by_offset(builder, at, k):
    return builder.zext(_read(builder, builder.add(at, ir.Constant(I64, 2 * k)), I16), I64)


entries_by_byte, entries_by_nine_bits, entries_by_offset = map(_entries_of_8, (_by_byte, _by_nine_bits, _by_offset))
fours_by_byte, fours_by_offset = map(_entries_of_4, (_by_byte, _by_offset))
"""By indices of a byte, by the lower nine bits of an u16, or by offsets in u16."""

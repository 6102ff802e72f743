"""Tables in machine code, and registers gathered from them."""

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils

from engine.simd.types import I8, I16, I64, i8x32, lowered, read, shuffle, vector_of


def table(make: Callable[[], bytes]):
    """Make an operation that returns the address of constant bytes, aligned to a cache line.

    Args:
        make: Returns the bytes; called when a kernel is compiled.
    """

    @lowered(types.int64())
    def address(builder):
        data = bytearray(make())
        constant = cgutils.global_constant(
            builder, "table", ir.Constant(ir.ArrayType(I8, len(data)), data)
        )
        constant.align = 64
        return builder.ptrtoint(constant, I64)

    return address


def _pair_of(builder, base, offsets):
    """Return two entries of eight bytes as a register of 128 bits.

    They are loaded as floats, which can be loaded into an upper half.
    """
    entries = (read(builder, builder.add(base, offset), ir.DoubleType()) for offset in offsets)
    return builder.bitcast(
        vector_of(builder, ir.VectorType(ir.DoubleType(), 2), entries), ir.VectorType(I64, 2)
    )


def _entries_of_8(offset_of):
    @lowered(i8x32(types.int64, types.int64))
    def entries(builder, table, indices):
        """Return four entries of eight bytes, by the indices at an address."""
        offsets = [offset_of(builder, indices, k) for k in range(4)]
        halves = [_pair_of(builder, table, offsets[k : k + 2]) for k in (0, 2)]
        return builder.bitcast(shuffle(builder, tuple(halves), range(4)), i8x32.ir)

    return entries


def _entries_of_4(offset_of):
    @lowered(i8x32(types.int64, types.int64, types.int64))
    def entries(builder, table, indices, upper):
        """Return eight entries of four bytes, by the indices at an address.

        The table holds each entry in the lower half of eight bytes, and after all of them once more
        in the upper half: registers are assembled from eight bytes at a time and combined by
        ``or``. ``upper`` is the size of one copy.
        """
        upper = builder.add(table, upper)
        halves = []
        for first in (0, 4):
            offsets = [offset_of(builder, indices, first + k) for k in range(4)]
            even = _pair_of(builder, table, offsets[::2])
            odd = _pair_of(builder, upper, offsets[1::2])
            halves.append(builder.or_(even, odd))
        return builder.bitcast(shuffle(builder, tuple(halves), range(4)), i8x32.ir)

    return entries


def _by_byte(builder, address, k):
    return builder.shl(builder.zext(read(builder, builder.add(address, I64(k)), I8), I64), I64(3))


def _by_nine_bits(builder, address, k):
    return builder.shl(builder.and_(_by_offset(builder, address, k), I64(511)), I64(3))


def _by_offset(builder, address, k):
    return builder.zext(read(builder, builder.add(address, I64(2 * k)), I16), I64)


entries_by_byte, entries_by_nine_bits, entries_by_offset = map(
    _entries_of_8, (_by_byte, _by_nine_bits, _by_offset)
)
fours_by_byte, fours_by_offset = map(_entries_of_4, (_by_byte, _by_offset))
"""Lookups by indices of a byte, by the lower nine bits of an u16, or by offsets in u16."""

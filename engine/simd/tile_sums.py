"""Sums of a tile of a matrix product in registers: a tuple of rows, each a tuple of registers."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.simd.arith import fma_ir
from engine.simd.types import F32, I64, lowered, read, splat, write


@intrinsic(prefer_literal=True)
def zero_sums(typingctx, like, n_rows, n_side_by_side):
    """Return sums of zero for ``n_rows`` rows of ``n_side_by_side`` registers like ``like``.

    Both numbers are constants.
    """
    if not all(isinstance(number, types.IntegerLiteral) for number in (n_rows, n_side_by_side)):
        return None
    sums_type = types.UniTuple(
        types.UniTuple(like, n_side_by_side.literal_value), n_rows.literal_value
    )

    def emit(context, builder, signature, args):
        return ir.Constant(context.get_value_type(sums_type), None)

    return sums_type(like, n_rows, n_side_by_side), emit


@lowered(lambda sums, address, row_bytes, factors: sums(sums, types.int64, types.int64, factors))
def add_products(builder, sums, address, row_bytes, factors):
    """Add to each row's sums the f32 of the row times ``factors``, a tuple of registers; rounded as
    ``fma``.

    Args:
        address: Address of the first row's f32; rows are ``row_bytes`` apart.
    """
    for row in range(sums.type.count):
        row_address = builder.add(address, builder.mul(row_bytes, I64(row)))
        x = splat(builder, read(builder, row_address, F32), factors.type.element)
        for k in range(factors.type.count):
            factor = builder.extract_value(factors, k)
            old_sum = builder.extract_value(sums, [row, k])
            sums = builder.insert_value(sums, fma_ir(builder, x, factor, old_sum), [row, k])
    return sums


@lowered(lambda sums, address, row_bytes: types.void(sums, types.int64, types.int64))
def store_sums(builder, sums, address, row_bytes):
    """Write the sums; rows are ``row_bytes`` apart."""
    row = sums.type.element
    for r in range(sums.type.count):
        row_address = builder.add(address, builder.mul(row_bytes, I64(r)))
        for k in range(row.count):
            target = builder.add(row_address, I64(4 * row.element.count * k))
            write(builder, builder.extract_value(sums, [r, k]), target)


@lowered(lambda v, x, least: v(v, v, v))
def zero_unless_above(builder, v, x, least):
    """Return v where x is above ``least`` or NaN, else 0."""
    return builder.select(builder.fcmp_unordered(">", x, least), v, ir.Constant(v.type, None))

"""Sums of a tile of a matrix product, all in registers: a tuple of rows, each a tuple of registers side by side."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.machine import level
from engine.simd.arith import _splat_ir
from engine.simd.types import call


@intrinsic(prefer_literal=True)
def no_sums(typingctx, like, n_rows, n_side_by_side):
    """Sums of zero for ``n_rows`` rows of ``n_side_by_side`` registers like ``like``; both numbers are constants."""
    if not all(isinstance(one, types.IntegerLiteral) for one in (n_rows, n_side_by_side)):
        return None
    kind = types.UniTuple(types.UniTuple(like, n_side_by_side.literal_value), n_rows.literal_value)

    def emit(context, builder, signature, args):
        return ir.Constant(context.get_value_type(kind), None)

    return kind(like, n_rows, n_side_by_side), emit


@intrinsic
def add_products(typingctx, sums, at, row_bytes, factors):
    """Add to each row's sums the float32 of the row times ``factors``, a tuple of registers; rounded as ``fma`` does.

    Args:
        at: address of the first row's float32; the others' lie ``row_bytes`` apart.
    """

    def emit(context, builder, signature, args):
        sums, at, row_bytes, factors = args
        kind, n = signature.args[3].dtype, signature.args[3].count
        for row in range(signature.args[0].count):
            where = builder.add(at, builder.mul(row_bytes, ir.Constant(row_bytes.type, row)))
            x = builder.load(builder.inttoptr(where, ir.FloatType().as_pointer()))
            x.align = 1
            x = _splat_ir(builder, x, kind)
            for k in range(n):
                product = x, builder.extract_value(factors, k), builder.extract_value(sums, [row, k])
                total = (
                    call(builder, f"llvm.fma.v{kind.n}f32", kind.ir, product)
                    if level.HAS_FMA
                    else builder.fadd(builder.fmul(*product[:2]), product[2])
                )
                sums = builder.insert_value(sums, total, [row, k])
        return sums

    return sums(sums, types.int64, types.int64, factors), emit


@intrinsic
def store_sums(typingctx, sums, at, row_bytes):
    """Write the sums, rows ``row_bytes`` apart."""

    def emit(context, builder, signature, args):
        sums, at, row_bytes = args
        row = signature.args[0].dtype
        for r in range(signature.args[0].count):
            where = builder.add(at, builder.mul(row_bytes, ir.Constant(row_bytes.type, r)))
            for k in range(row.count):
                to = builder.add(where, ir.Constant(where.type, 4 * row.dtype.n * k))
                pointer = builder.inttoptr(to, row.dtype.ir.as_pointer())
                builder.store(builder.extract_value(sums, [r, k]), pointer).align = 1
        return context.get_dummy_value()

    return types.void(sums, types.int64, types.int64), emit


@intrinsic
def zero_unless_above(typingctx, v, x, least):
    """v where x is above ``least`` or NaN, else 0."""

    def emit(context, builder, signature, args):
        v, x, least = args
        return builder.select(builder.fcmp_unordered(">", x, least), v, ir.Constant(v.type, None))

    return v(v, v, v), emit

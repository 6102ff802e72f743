"""Memory as one-dimensional arrays, which own nothing."""

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _array_of(lane):
    kind = types.Array(lane, 1, "C")

    @intrinsic
    def array(typingctx, address, n):
        """n numbers at an address."""

        def emit(context, builder, signature, args):
            from numba.np import arrayobj  # takes 0.2 s, and only compiling needs it

            address, n = args
            made = arrayobj.make_array(kind)(context, builder)
            item_bytes = context.get_constant(types.intp, lane.bitwidth // 8)
            arrayobj.populate_array(
                made,
                data=builder.inttoptr(address, made.data.type),
                shape=[n],
                strides=[item_bytes],
                itemsize=item_bytes,
                meminfo=cgutils.get_null_value(made.meminfo.type),
            )
            return made._getvalue()

        return kind(types.int64, types.int64), emit

    return array


array_f32 = _array_of(types.float32)
array_f64 = _array_of(types.float64)
array_i32 = _array_of(types.int32)
array_u64 = _array_of(types.uint64)

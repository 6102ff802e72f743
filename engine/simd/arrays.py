"""Memory as one-dimensional arrays that own nothing."""

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _array_of(lane):
    array_type = types.Array(lane, 1, "C")

    @intrinsic
    def array(typingctx, address, n):
        """Return n numbers at an address as an array."""

        def emit(context, builder, signature, args):
            from numba.np import arrayobj  # takes 0.2 s, and only compiling needs it

            address, n = args
            result = arrayobj.make_array(array_type)(context, builder)
            item_bytes = context.get_constant(types.intp, lane.bitwidth // 8)
            arrayobj.populate_array(
                result,
                data=builder.inttoptr(address, result.data.type),
                shape=[n],
                strides=[item_bytes],
                itemsize=item_bytes,
                meminfo=cgutils.get_null_value(result.meminfo.type),
            )
            return result._getvalue()

        return array_type(types.int64, types.int64), emit

    return array


array_f32 = _array_of(types.float32)
array_f64 = _array_of(types.float64)
array_i32 = _array_of(types.int32)
array_u64 = _array_of(types.uint64)

"""One token's column out of a block, for the output head."""

from engine.jit import kernel
from engine.kernels.records import STEP
from engine.kernels.records import TAKE_COLUMN as F
from engine.kernels.share import share
from engine.simd import load_f32x8, load_i64, store_f32x8


@kernel
def take_column(op, thread, n_threads):
    """Out = x[step.column]."""
    dim, out = load_i64(op + F.dim), load_i64(op + F.out)
    x = load_i64(op + F.x) + 4 * dim * load_i64(load_i64(op + F.step) + STEP.column)
    first, last = share(dim, 256, thread, n_threads)
    for i in range(first, last, 8):
        store_f32x8(out + 4 * i, load_f32x8(x + 4 * i))

"""One token's column out of a block, for the output head, and parts of heads from one vector to another."""

from engine import simd as vec
from engine.jit import kernel
from engine.kernels.records import COPY, STEP
from engine.kernels.records import TAKE_COLUMN as F
from engine.kernels.share import share


@kernel
def take_column(op, thread, n_threads):
    """Out = x[step.column]."""
    dim, out = vec.load_i64(op + F.dim), vec.load_i64(op + F.out)
    x = vec.load_i64(op + F.x) + 4 * dim * vec.load_i64(vec.load_i64(op + F.step) + STEP.column)
    first, last = share(dim, 256, thread, n_threads)
    for i in range(first, last, 8):
        vec.store_f32x8(out + 4 * i, vec.load_f32x8(x + 4 * i))


@kernel
def copy(op, thread, n_threads):
    """Heads of all tokens are dealt to the threads, as ``rope`` deals them."""
    n, n_heads = vec.load_i64(op + COPY.n), vec.load_i64(op + COPY.n_heads)
    x, x_stride, x_step = vec.load_i64(op + COPY.x), vec.load_i64(op + COPY.x_stride), vec.load_i64(op + COPY.x_step)
    out, out_stride, out_step = (
        vec.load_i64(op + COPY.out),
        vec.load_i64(op + COPY.out_stride),
        vec.load_i64(op + COPY.out_step),
    )
    first, last = share(vec.load_i64(vec.load_i64(op + COPY.step) + STEP.n_tokens) * n_heads, 1, thread, n_threads)
    for i in range(first, last):
        t, head = i // n_heads, i % n_heads
        source, target = x + 4 * (t * x_stride + head * x_step), out + 4 * (t * out_stride + head * out_step)
        for k in range(0, 4 * n, 32):
            vec.store_f32x8(target + k, vec.load_f32x8(source + k))

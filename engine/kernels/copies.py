"""Copies of one token's vector out of a block, and of elements of heads between vectors, f32."""

from engine import simd as vec
from engine.jit import kernel
from engine.kernels.records import COPY, STEP
from engine.kernels.records import TAKE_TOKEN as F
from engine.kernels.share import n_tokens_of, share


@kernel
def take_token(op, thread, n_threads):
    """Compute out = x[step.index], for the output head."""
    step, x, dim, out = vec.load_words(op, (F.step, F.x, F.dim, F.out))
    first, last = share(dim, 256, thread, n_threads)
    x += 4 * dim * vec.load_i64(step + STEP.index)
    for i in range(first, last, 8):
        vec.store_f32x8(out + 4 * i, vec.load_f32x8(x + 4 * i))


@kernel
def copy(op, thread, n_threads):
    """Copy ``n`` elements of each head; the threads share the heads of all tokens, as in
    ``rope``."""
    n, n_heads, x, x_stride, x_step = vec.load_words(
        op, (COPY.n, COPY.n_heads, COPY.x, COPY.x_stride, COPY.x_step)
    )
    out, out_stride, out_step = vec.load_words(op, (COPY.out, COPY.out_stride, COPY.out_step))
    first, last = share(n_tokens_of(op) * n_heads, 1, thread, n_threads)
    for i in range(first, last):
        t = i // n_heads
        head = i % n_heads
        source = x + 4 * (t * x_stride + head * x_step)
        target = out + 4 * (t * out_stride + head * out_step)
        for k in range(0, 4 * n, 32):
            vec.store_f32x8(target + k, vec.load_f32x8(source + k))

"""Rows of the token embedding, dequantised by the type's own function."""

from engine.jit import inner
from engine.kernels.records import EMBED as F
from engine.kernels.records import STEP
from engine.kernels.share import share
from engine.simd import load_i32, load_i64


@inner
def embed_rows(dequantize, block_size, block_bytes, op, thread, n_threads):
    """Write the row of each token of the step; tokens are dealt to the threads.

    Args:
        dequantize: (block, out) -> None, writes ``block_size`` f32.
    """
    step = load_i64(op + F.step)
    weights, row_bytes, n_blocks = load_i64(op + F.weights), load_i64(op + F.row_bytes), load_i64(op + F.n_blocks)
    out, dim, tokens = load_i64(op + F.out), load_i64(op + F.dim), load_i64(step + STEP.tokens)
    first, last = share(load_i64(step + STEP.n_tokens), 1, thread, n_threads)
    for t in range(first, last):
        row = weights + load_i32(tokens + 4 * t) * row_bytes
        for b in range(n_blocks):
            dequantize(row + b * block_bytes, out + 4 * (t * dim + b * block_size))

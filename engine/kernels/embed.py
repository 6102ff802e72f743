"""Rows of the token embedding, dequantised by the type's own function, and rows of learned positions."""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import ADD_POSITIONS, STEP
from engine.kernels.records import EMBED as F
from engine.kernels.share import share


@inner
def embed_rows(dequantize, block_size, block_bytes, op, thread, n_threads):
    """Write the row of each token of the step; tokens are dealt to the threads.

    Args:
        dequantize: (block, out) -> None, writes ``block_size`` f32.
    """
    step = vec.load_i64(op + F.step)
    weights, row_bytes, n_blocks = (
        vec.load_i64(op + F.weights),
        vec.load_i64(op + F.row_bytes),
        vec.load_i64(op + F.n_blocks),
    )
    out, dim, tokens = vec.load_i64(op + F.out), vec.load_i64(op + F.dim), vec.load_i64(step + STEP.tokens)
    first, last = share(vec.load_i64(step + STEP.n_tokens), 1, thread, n_threads)
    for t in range(first, last):
        row = weights + vec.load_i32(tokens + 4 * t) * row_bytes
        for b in range(n_blocks):
            dequantize(row + b * block_bytes, out + 4 * (t * dim + b * block_size))


@kernel
def add_positions(op, thread, n_threads):
    """x += the row of each token's position; tokens are dealt as in ``embed_rows``, so no barrier is needed between.

    A position that the table does not have reads the last row: nothing beyond it is touched.
    """
    step, dim = vec.load_i64(op + ADD_POSITIONS.step), vec.load_i64(op + ADD_POSITIONS.dim)
    x, table, n_rows = (
        vec.load_i64(op + ADD_POSITIONS.x),
        vec.load_i64(op + ADD_POSITIONS.table),
        vec.load_i64(op + ADD_POSITIONS.n_rows),
    )
    first, last = share(vec.load_i64(step + STEP.n_tokens), 1, thread, n_threads)
    for t in range(first, last):
        row = table + 4 * dim * min(vec.load_i64(step + STEP.start_pos) + t, n_rows - 1)
        for at in range(0, 4 * dim, 32):
            vec.store_f32x8(
                x + 4 * t * dim + at, vec.fadd(vec.load_f32x8(x + 4 * t * dim + at), vec.load_f32x8(row + at))
            )

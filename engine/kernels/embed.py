"""Rows of the token embedding, dequantised, and rows of learned position embeddings.

out[t] = table[token[t]], f32 [tokens, dim].
"""

from engine import simd as vec
from engine.jit import kernel
from engine.kernels.records import ADD_POSITIONS, STEP
from engine.kernels.records import EMBED as F
from engine.kernels.share import n_tokens_of, share


def embed_rows(dequantize, block_size, block_bytes):
    """Make the kernel ``embed``: it writes the row of each token of the step.

    Threads share the tokens.

    Args:
        dequantize: (block, out) -> None, writes ``block_size`` f32.
    """

    def embed(op, thread, n_threads):
        weights, row_bytes, n_blocks, out, dim = vec.load_words(
            op, (F.weights, F.row_bytes, F.n_blocks, F.out, F.dim)
        )
        tokens = vec.load_i64(vec.load_i64(op) + STEP.tokens)
        first, last = share(n_tokens_of(op), 1, thread, n_threads)
        for t in range(first, last):
            row = weights + vec.load_i32(tokens + 4 * t) * row_bytes
            for b in range(n_blocks):
                dequantize(row + b * block_bytes, out + 4 * (t * dim + b * block_size))

    return embed


@kernel
def add_positions(op, thread, n_threads):
    """Add to x the row of each token's position.

    Threads share the tokens as in ``embed_rows``, so no barrier is needed in between. A position
    beyond the table reads the last row.
    """
    x, dim, table, n_rows = vec.load_words(
        op, (ADD_POSITIONS.x, ADD_POSITIONS.dim, ADD_POSITIONS.table, ADD_POSITIONS.n_rows)
    )
    start_pos = vec.load_i64(vec.load_i64(op) + STEP.start_pos)
    first, last = share(n_tokens_of(op), 1, thread, n_threads)
    for t in range(first, last):
        row = table + 4 * dim * min(start_pos + t, n_rows - 1)
        for offset in range(0, 4 * dim, 32):
            target = x + 4 * t * dim + offset
            vec.store_f32x8(target, vec.fadd(vec.load_f32x8(target), vec.load_f32x8(row + offset)))

"""Scratch of a thread for attention. It is the same at every level, as plans are.

Imports no numba.
"""

from engine.kernels.records import ATTENTION_CHUNK, PARTIAL_HEADER

WIDEST_KEYS = 32
"""Positions, or elements of values, in a prefill tile with the widest registers."""
ROWS = 48
"""Queries that pass a chunk together, in full tiles."""
SCORE_ROW_BYTES = 4 * (ATTENTION_CHUNK + WIDEST_KEYS)
"""Bytes from one query's scores to the next: a chunk, and the rest of a tile that begins in it."""
SPANS_BYTES = 16 * ROWS // 3
"""Bytes of the visible ranges of all tiles of queries."""


def scratch_bytes(head_dim: int) -> int:
    """Return the scratch of a list of queries.

    It holds the queries, their scores, two results of each, and a tile of keys or values.
    """
    result_bytes = 4 * (PARTIAL_HEADER + (head_dim + WIDEST_KEYS - 1) // WIDEST_KEYS * WIDEST_KEYS)
    query_scratch_bytes = 4 * head_dim + SCORE_ROW_BYTES + 2 * result_bytes
    return (
        ROWS * query_scratch_bytes + SPANS_BYTES + 4 * WIDEST_KEYS * max(head_dim, ATTENTION_CHUNK)
    )

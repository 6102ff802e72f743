"""Memory that a thread needs for attention, the same at every level, as are plans.

Knows no numba.
"""

from engine.kernels.records import ATTENTION_CHUNK, PARTIAL_HEADER

WIDEST_KEYS = 32
"""Positions, or elements of values, of a prompt's tile where registers are widest."""
ROWS = 48
"""Queries that go through a chunk together, whole tiles."""
SCORE_ROW_BYTES = 4 * (ATTENTION_CHUNK + WIDEST_KEYS)
"""From one query's scores to the next: a chunk, and what a tile that begins within it has
beyond."""
SPANS_BYTES = 16 * ROWS // 3
"""Where what each tile of queries sees begins and ends."""


def scratch_bytes(head_dim: int) -> int:
    """What a list of queries takes: these, their scores, two results of each, and a tile of keys or
    of values."""
    result_bytes = 4 * (PARTIAL_HEADER + (head_dim + WIDEST_KEYS - 1) // WIDEST_KEYS * WIDEST_KEYS)
    each = 4 * head_dim + SCORE_ROW_BYTES + 2 * result_bytes
    return ROWS * each + SPANS_BYTES + 4 * WIDEST_KEYS * max(head_dim, ATTENTION_CHUNK)

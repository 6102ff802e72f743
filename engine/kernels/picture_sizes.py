"""Sizes of attention in encoders of pictures, which are equal at every level. Imports no numba."""

LINES = 16
"""Lines and columns of a tile."""
STEP = 32
"""Elements that a product of tiles sums up; widths of heads and numbers of keys are multiples."""
BLOCK = 2 * LINES
"""Queries that pass the keys together."""
CHUNK = 256
"""Keys whose scores are computed before their values are added."""


def padded(n: int) -> int:
    """Return a number of elements or keys, rounded up to full steps."""
    return -(-n // STEP) * STEP


def scratch_bytes(head_dim: int) -> int:
    """Return the scratch of a thread: queries twice, scores, weights, result, maxima and sums."""
    width = padded(head_dim)
    return 4 * BLOCK * width + 6 * BLOCK * CHUNK + 4 * BLOCK * width + 8 * BLOCK

"""Changes to bytes that every target can use: flips, cuts, copies, pieces of others, numbers at the
edges of types."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

EDGES = (0, 1, 2, 7, 8, 31, 32, 63, 64, 127, 128, 255, 256, 1 << 15, (1 << 16) - 1, 1 << 16,
         (1 << 31) - 1, 1 << 31,
         (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 61) + 1, (1 << 63) - 1, 1 << 63,
         (1 << 64) - 1)  # fmt: skip
_MOST_PIECE_BYTES = 4096


def mutate_bytes(
    rng: Random, data: bytes, others: Sequence[bytes], within: int | None = None
) -> bytes:
    """Return the data with one to four changes.

    Args:
        others: to take pieces from.
        within: change only this number of leading bytes; None for all.
    """
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        end = min(len(changed), within) if within is not None else len(changed)
        _change(rng, changed, rng.randrange(end + 1), others)
    return bytes(changed)


def _change(rng: Random, data: bytearray, at: int, others: Sequence[bytes]) -> None:
    n = min(rng.choice((1, 1, 2, 4, 8, 64, _MOST_PIECE_BYTES)), max(1, len(data) - at))
    kind = rng.randrange(9)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1 and at < len(data):
        data[at] = rng.choice((0, 1, 9, 10, 27, 32, 34, 127, 128, 255, rng.randrange(256)))
    elif kind == 2:
        write_number(rng, data, at)
    elif kind == 3:
        del data[at : at + n]
    elif kind == 4:
        data[at:at] = data[at : at + n]
    elif kind == 5:
        data[at:at] = rng.randbytes(n)
    elif kind == 6:
        data[at : at + n] = bytes(n)
    elif kind == 7 and others:
        other = rng.choice(others)
        start = rng.randrange(len(other) + 1)
        data[at : at + n] = other[start : start + n]
    elif rng.random() < 0.3:
        del data[at:]


def write_number(rng: Random, data: bytearray, at: int) -> None:
    """Overwrite with a number of two, four or eight bytes that is the edge of something."""
    form, bits = rng.choice((("<H", 16), ("<I", 32), ("<Q", 64)))
    raw = struct.pack(form, edge(rng) % (1 << bits))
    end = min(len(data), at + len(raw))
    data[at:end] = raw[: end - at]


def edge(rng: Random) -> int:
    """A number at the edge of a type, or next to it."""
    return max(0, rng.choice(EDGES) + rng.choice((0, 0, 0, -1, 1)))

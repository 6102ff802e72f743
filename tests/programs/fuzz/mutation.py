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
    rng: Random, data: bytes, inputs: Sequence[bytes], within: int | None = None
) -> bytes:
    """Return the data with one to four changes.

    Args:
        others: to take pieces from.
        within: change only this number of leading bytes; None for all.
    """
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        end = min(len(changed), within) if within is not None else len(changed)
        _change(rng, changed, rng.randrange(end + 1), inputs)
    return bytes(changed)


def _change(rng: Random, data: bytearray, index: int, inputs: Sequence[bytes]) -> None:
    n = min(rng.choice((1, 1, 2, 4, 8, 64, _MOST_PIECE_BYTES)), max(1, len(data) - index))
    choice = rng.randrange(9)
    if choice == 0 and index < len(data):
        data[index] ^= 1 << rng.randrange(8)
    elif choice == 1 and index < len(data):
        data[index] = rng.choice((0, 1, 9, 10, 27, 32, 34, 127, 128, 255, rng.randrange(256)))
    elif choice == 2:
        write_number(rng, data, index)
    elif choice == 3:
        del data[index : index + n]
    elif choice == 4:
        data[index:index] = data[index : index + n]
    elif choice == 5:
        data[index:index] = rng.randbytes(n)
    elif choice == 6:
        data[index : index + n] = bytes(n)
    elif choice == 7 and inputs:
        donor = rng.choice(inputs)
        start = rng.randrange(len(donor) + 1)
        data[index : index + n] = donor[start : start + n]
    elif rng.random() < 0.3:
        del data[index:]


def write_number(rng: Random, data: bytearray, index: int) -> None:
    """Overwrite with a number of two, four or eight bytes that is the edge of something."""
    form, bits = rng.choice((("<H", 16), ("<I", 32), ("<Q", 64)))
    raw = struct.pack(form, edge(rng) % (1 << bits))
    end = min(len(data), index + len(raw))
    data[index:end] = raw[: end - index]


def edge(rng: Random) -> int:
    """A number at the edge of a type, or next to it."""
    return max(0, rng.choice(EDGES) + rng.choice((0, 0, 0, -1, 1)))

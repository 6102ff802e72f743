"""Positions that the rings of sliding layers hold.

A layer that sees only a window of positions stores them in a ring: position p is in slot
``p % n_slots`` and overwrites position ``p - n_slots``. A session can go back to position n as long
as every position that the token at n sees is still there.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.kernels.records import ATTENTION_CHUNK

RING_BLOCK = 256
"""Number of positions of a ring beyond its window. It limits the tokens of a block, and how far a
session can always go back."""


def ring_slots(window: int, picture_rows: int = 0) -> int:
    """Return the number of positions in the ring of a layer with a window.

    It is a multiple of the attention kernels' chunk, so that no chunk crosses the ring's end.

    Args:
        picture_rows: limit on the rows of a picture that need one block.
    """
    n_block = max(RING_BLOCK, picture_rows)
    return (window + n_block + ATTENTION_CHUNK - 1) // ATTENTION_CHUNK * ATTENTION_CHUNK


@dataclass
class RingReach:
    """Positions that all rings of one cache hold.

    Attributes:
        rings: (window, number of slots) of each ring, in positions.
        end: position after the last one written since the rings were empty.
        lost: position below which the rings hold nothing, whatever ``end`` says.
    """

    rings: frozenset[tuple[int, int]]
    end: int = 0
    lost: int = 0

    def write(self, n: int) -> None:
        """Record that positions up to n are about to be written."""
        self.end = max(self.end, n)

    def first(self, n_slots: int) -> int:
        """Return the first position that a ring of ``n_slots`` holds."""
        return max(0, self.lost, self.end - n_slots)

    def holds(self, first: int) -> bool:
        """Whether all rings hold every position from ``first`` on."""
        return all(self.first(n_slots) <= first for _, n_slots in self.rings)

    def reaches(self, n: int) -> bool:
        """Whether the token at position n would find every position that it sees."""
        return all(self.first(n_slots) <= max(0, n - window + 1) for window, n_slots in self.rings)

    def shift(self, n_keep: int, n_drop: int, length: int) -> None:
        """Record that positions n_keep + n_drop up to length moved down by n_drop."""
        lost = 0
        for _, n_slots in self.rings:
            first = self.first(n_slots)
            if first >= n_keep:
                first = max(n_keep, first - n_drop)
            lost = max(lost, first)
        self.lost = lost
        self.end = length - n_drop

    def clear(self) -> None:
        """Make the rings empty."""
        self.end = 0
        self.lost = 0

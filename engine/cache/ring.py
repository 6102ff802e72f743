"""Which positions the rings of sliding layers hold.

A layer that sees only a window of positions keeps them in a ring: position p is in slot
``p % slots``, and what is written overwrites the position ``slots`` before it. A session can go
back to position n as long as every position that the token at n sees is still there.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.kernels.records import ATTENTION_CHUNK

RING_BLOCK = 256
"""Positions of a ring beyond its window: the most tokens computed at once, and the furthest that
going back is free."""


def ring_slots(window: int) -> int:
    """Return the positions that a layer with a window keeps at most.

    A multiple of the attention kernels' chunk, so that no chunk crosses the ring's end.
    """
    return (window + RING_BLOCK + ATTENTION_CHUNK - 1) // ATTENTION_CHUNK * ATTENTION_CHUNK


@dataclass
class RingReach:
    """The positions that all rings of one cache hold.

    Attributes:
        rings: (window, slots) of each ring, in positions.
        end: one past the highest position written since the rings were empty.
        lost: positions below it are not in the rings, whatever ``end`` says.
    """

    rings: frozenset[tuple[int, int]]
    end: int = 0
    lost: int = 0

    def write(self, n: int) -> None:
        """Note that positions up to n are about to be written."""
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
        """Note that positions n_keep + n_drop up to length moved down by n_drop."""
        firsts = [self.first(n_slots) for _, n_slots in self.rings]
        self.lost = max(
            (first if first < n_keep else max(n_keep, first - n_drop) for first in firsts),
            default=0,
        )
        self.end = length - n_drop

    def clear(self) -> None:
        """Note that nothing of what was written counts."""
        self.end = self.lost = 0

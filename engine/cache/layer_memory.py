"""Size of the layers' memory of past tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryNeeds:
    """Size of the layers' memory.

    Attributes:
        position_bytes: bytes per position of the context.
        fixed_bytes: bytes that do not depend on the context.
        rings: (number of positions, bytes per position) of sliding layers, fewest positions first.
        state_bytes: the part of ``fixed_bytes`` that each token reads and writes.
    """

    position_bytes: int
    fixed_bytes: int = 0
    rings: tuple[tuple[int, int], ...] = ()
    state_bytes: int = 0

    def __add__(self, other: MemoryNeeds) -> MemoryNeeds:
        rings = tuple(sorted(self.rings + other.rings))
        fixed = self.fixed_bytes + other.fixed_bytes
        states = self.state_bytes + other.state_bytes
        return MemoryNeeds(self.position_bytes + other.position_bytes, fixed, rings, states)

    def bytes_for(self, n_ctx: int) -> int:
        """Return the bytes for a context of ``n_ctx`` tokens."""
        return self._position_bytes(n_ctx) + self.fixed_bytes

    def bytes_moved(self, n_tokens: int) -> int:
        """Return the bytes of keys, values and states that a decode step after ``n_tokens`` tokens
        reads, plus those of states that it writes."""
        return self._position_bytes(n_tokens) + 2 * self.state_bytes

    def _position_bytes(self, n: int) -> int:
        return n * self.position_bytes + sum(min(n, most) * n_bytes for most, n_bytes in self.rings)

    def largest_context(self, n_bytes: int) -> int:
        """Return the largest context, a multiple of eight tokens, that fits into ``n_bytes``; 0 if
        none does."""
        available = max(0, n_bytes - self.fixed_bytes)
        n_ctx = 0
        position_bytes = self.position_bytes + sum(ring_bytes for _, ring_bytes in self.rings)
        for n_slots, ring_bytes in self.rings:
            n_filled = (n_slots - n_ctx) * position_bytes  # bytes until this ring is full
            if available < n_filled:
                break
            available -= n_filled
            n_ctx = n_slots
            position_bytes -= ring_bytes
        return (n_ctx + available // max(1, position_bytes)) // 8 * 8

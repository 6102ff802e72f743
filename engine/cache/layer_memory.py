"""The size of the layers' memory of past tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryNeeds:
    """Size of the layers' memory.

    Attributes:
        position_bytes: bytes per position of the context.
        fixed_bytes: bytes that do not depend on the context.
        rings: (positions at most, bytes per position) of layers that keep a window only, fewest
            positions first.
        state_bytes: of the fixed ones, those that each token reads; it writes as many.
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
        """Return the bytes that a decode step after ``n_tokens`` tokens reads, and writes of
        states."""
        return self._position_bytes(n_tokens) + 2 * self.state_bytes

    def _position_bytes(self, n: int) -> int:
        return n * self.position_bytes + sum(min(n, most) * n_bytes for most, n_bytes in self.rings)

    def largest_context(self, n_bytes: int) -> int:
        """Return the largest context, a multiple of eight tokens, that fits into ``n_bytes``; 0 if
        none does."""
        left = max(0, n_bytes - self.fixed_bytes)
        n_ctx = 0
        each = self.position_bytes + sum(ring_bytes for _, ring_bytes in self.rings)
        for most, ring_bytes in self.rings:
            if left < (most - n_ctx) * each:
                break
            left -= (most - n_ctx) * each
            n_ctx = most
            each = each - ring_bytes
        return (n_ctx + left // max(1, each)) // 8 * 8

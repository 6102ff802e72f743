"""The layers' memory of past tokens: the protocol that sessions use, and its size in bytes.

Keys and values are the first implementation (``kv_cache``): positions above the session's length are unused, so going
back costs nothing as far as a sliding layer's ring reaches. A recurrent state cannot be cut (``states``). What cannot
go back to a position goes to a kept one or to the start, returns where it is, and the session computes the rest again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

Copied = tuple[int, int, int]
"""Positions first to last, and the number of bytes that ``copy_out`` wrote for them."""


@dataclass(frozen=True)
class MemoryNeeds:
    """Size of the layers' memory.

    Attributes:
        position_bytes: bytes per position of the context.
        fixed_bytes: bytes that do not depend on the context.
        rings: (positions at most, bytes per position) of layers that keep a window only, fewest positions first.
        state_bytes: of the fixed ones, those that each token reads; it writes as many.
    """

    position_bytes: int
    fixed_bytes: int = 0
    rings: tuple[tuple[int, int], ...] = ()
    state_bytes: int = 0

    def __add__(self, other: MemoryNeeds) -> MemoryNeeds:
        rings, fixed = tuple(sorted(self.rings + other.rings)), self.fixed_bytes + other.fixed_bytes
        states = self.state_bytes + other.state_bytes
        return MemoryNeeds(self.position_bytes + other.position_bytes, fixed, rings, states)

    def bytes_for(self, n_ctx: int) -> int:
        """Return the bytes for a context of ``n_ctx`` tokens."""
        return self._position_bytes(n_ctx) + self.fixed_bytes

    def bytes_moved(self, n_tokens: int) -> int:
        """Return the bytes that a decode step after ``n_tokens`` tokens reads, and writes of states."""
        return self._position_bytes(n_tokens) + 2 * self.state_bytes

    def _position_bytes(self, n: int) -> int:
        return n * self.position_bytes + sum(min(n, most) * n_bytes for most, n_bytes in self.rings)

    def largest_context(self, n_bytes: int) -> int:
        """Return the largest context, a multiple of eight tokens, that fits into ``n_bytes``; 0 if none does."""
        left, n_ctx = max(0, n_bytes - self.fixed_bytes), 0
        each = self.position_bytes + sum(ring_bytes for _, ring_bytes in self.rings)
        for most, ring_bytes in self.rings:
            if left < (most - n_ctx) * each:
                break
            left -= (most - n_ctx) * each
            n_ctx, each = most, each - ring_bytes
        return (n_ctx + left // max(1, each)) // 8 * 8


class LayerMemory(Protocol):
    """Memory of all layers of one session.

    Attributes:
        n_bytes: bytes allocated, or set aside.
        fixed_bytes: those of them that do not depend on the context.
        state_bytes: those that each token reads; it writes as many.
        layout_version: of the memory layout and its meaning, checked when a saved state is restored.
        may_overrun: whether more may be computed than ``reach`` then says, and counts for nothing.
    """

    n_bytes: int
    fixed_bytes: int
    state_bytes: int
    layout_version: int
    may_overrun: bool

    def extend(self, n: int) -> None:
        """Note that positions up to n are about to be written."""

    def reach(self, n: int) -> None:
        """Note that positions up to n were computed; positions written by a failed walk do not count."""

    def mark(self) -> None:
        """Note that a conversation turns at the present end: it is worth being reachable later."""

    def kept_before(self, n: int) -> int:
        """Return the last position up to n that ``rewind`` will reach whatever is computed after it."""
        ...

    def keep(self, n: int) -> None:
        """Make the present end n reachable by ``rewind`` until ``release``; a position before it, once gone back to."""

    def release(self) -> None:
        """Keep no position any longer."""

    def reachable(self, n: int) -> int:
        """Return the number of positions that ``rewind(n)`` would leave."""
        ...

    def rewind(self, n: int) -> int:
        """Go back to n positions, or to fewer if that is not possible; returns the number left."""
        ...

    def can_shift(self, n_keep: int, n_drop: int, length: int) -> bool:
        """Whether ``shift`` works for these positions."""
        ...

    def shift(self, n_keep: int, n_drop: int, length: int) -> None:
        """Drop positions n_keep to n_keep + n_drop; those up to length move down and keep their meaning."""

    def repeat(self, n: int, upto: int) -> None:
        """Repeat the first n positions up to ``upto``, for measurements only. Both are multiples of eight."""

    def resident_bytes(self) -> int | None:
        """Bytes that are in physical memory; None if the system does not tell."""
        ...

    def stop(self, after: int, upto: int) -> int:
        """Return where a copy of positions after ``after`` should end, at most ``upto``, so that it can be gone on
        from: a recurrent state can be copied for some positions only."""
        ...

    def copied_bytes(self, first: int, last: int, is_end: bool = False) -> int:
        """Return the most bytes that ``copy_out`` writes for these positions."""
        ...

    def is_copy(self, first: int, last: int, n_bytes: int) -> bool:
        """Whether ``copy_out`` may have written this number of bytes for these positions."""
        ...

    def has_state(self, copied: Copied) -> bool:
        """Whether a copy carries the recurrent state after its last position, which no other copy holds."""
        ...

    def copy_out(self, first: int, last: int, out: Bytes, is_end: bool = False) -> int:
        """Copy positions first to last into ``out``; first is a multiple of eight. Returns the bytes written.

        Layers that do not hold these positions any more are left out: the bytes are fewer then.

        Args:
            is_end: nothing was computed after ``last`` yet, and the copy should be one that can be gone on from.
        """
        ...

    def resumes_at(self, n: int, copies: Sequence[Copied]) -> int:
        """Return the last position up to n that can be gone on from once these copies are restored; 0 for none."""
        ...

    def copy_in(self, first: int, last: int, data: Bytes) -> None:
        """Restore the result of ``copy_out`` for the same positions, in order from the first; those beyond the context
        are skipped. Go back to the end by ``rewind`` then: it says whether enough was restored."""

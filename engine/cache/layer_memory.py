"""What layers remember of the tokens so far, as the session sees it: a protocol, and what it costs before it exists.

Keys and values are the first implementation (``kv_cache``). A position of theirs exists below the session's length and
not above it, so going back costs nothing. A recurrent state cannot be cut: it goes back to where it was kept, or to
the start, and says so; the session computes the rest again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes that layers remember in.

    Attributes:
        position_bytes: of every position of the context.
        fixed_bytes: whatever the context.
    """

    position_bytes: int
    fixed_bytes: int = 0

    def __add__(self, other: MemoryNeeds) -> MemoryNeeds:
        return MemoryNeeds(self.position_bytes + other.position_bytes, self.fixed_bytes + other.fixed_bytes)

    def bytes_for(self, n_ctx: int) -> int:
        """Bytes for a context of some tokens."""
        return n_ctx * self.position_bytes + self.fixed_bytes

    def largest_context(self, n_bytes: int) -> int:
        """The most tokens, a multiple of eight, that fit into some bytes."""
        return max(0, n_bytes - self.fixed_bytes) // max(1, self.position_bytes) // 8 * 8


class LayerMemory(Protocol):
    """What all layers of one session remember.

    Attributes:
        n_bytes: taken in all.
        can_shift: whether ``shift`` works.
    """

    n_bytes: int
    can_shift: bool

    def reach(self, n: int) -> None:
        """Note that positions up to n were computed; what a walk that failed wrote behind them does not count."""

    def keep(self, n: int) -> None:
        """Make ``rewind(n)`` reach n, the present end, until positions before it are given up."""

    def rewind(self, n: int) -> int:
        """Go back to n positions, or to fewer where that is not possible; returns how many are left."""
        ...

    def shift(self, n_keep: int, n_drop: int, length: int) -> None:
        """Drop positions n_keep to n_keep + n_drop; those up to length move down and mean the same there."""

    def repeat(self, n: int, upto: int) -> None:
        """Pretend that n positions go on up to another one; what is read there means nothing. Multiples of eight."""

    def resident_bytes(self) -> int | None:
        """How much of it lies in memory; None where the system does not say."""
        ...

    def copied_bytes(self, first: int, last: int) -> int:
        """Bytes of what ``copy_out`` of these positions writes."""
        ...

    def copy_out(self, first: int, last: int, out: Bytes) -> int:
        """Copy what is remembered of positions first to last; first is a multiple of eight. Returns bytes written."""
        ...

    def copy_in(self, first: int, last: int, data: Bytes) -> None:
        """Put back what ``copy_out`` of the same positions gave; those beyond the context are left out."""

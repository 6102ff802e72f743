"""The layers' memory of past tokens: the protocol that sessions use, and its size in bytes.

Keys and values are the first implementation (``kv_cache``): positions above the session's length are unused, so going
back costs nothing. A recurrent state cannot be cut: it goes back to a kept position or to the start, returns where it
is, and the session computes the rest again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class MemoryNeeds:
    """Size of the layers' memory.

    Attributes:
        position_bytes: bytes per position of the context.
        fixed_bytes: bytes that do not depend on the context.
    """

    position_bytes: int
    fixed_bytes: int = 0

    def __add__(self, other: MemoryNeeds) -> MemoryNeeds:
        return MemoryNeeds(self.position_bytes + other.position_bytes, self.fixed_bytes + other.fixed_bytes)

    def bytes_for(self, n_ctx: int) -> int:
        """Return the bytes for a context of ``n_ctx`` tokens."""
        return n_ctx * self.position_bytes + self.fixed_bytes

    def largest_context(self, n_bytes: int) -> int:
        """Return the largest context, a multiple of eight tokens, that fits into ``n_bytes``; 0 if none does."""
        return max(0, n_bytes - self.fixed_bytes) // max(1, self.position_bytes) // 8 * 8


class LayerMemory(Protocol):
    """Memory of all layers of one session.

    Attributes:
        n_bytes: bytes allocated.
        can_shift: whether ``shift`` works.
    """

    n_bytes: int
    can_shift: bool

    def reach(self, n: int) -> None:
        """Note that positions up to n were computed; positions written by a failed walk do not count."""

    def keep(self, n: int) -> None:
        """Make the present end n reachable by ``rewind(n)``, until positions before it are dropped."""

    def rewind(self, n: int) -> int:
        """Go back to n positions, or to fewer if that is not possible; returns the number left."""
        ...

    def shift(self, n_keep: int, n_drop: int, length: int) -> None:
        """Drop positions n_keep to n_keep + n_drop; those up to length move down and keep their meaning."""

    def repeat(self, n: int, upto: int) -> None:
        """Repeat the first n positions up to ``upto``, for measurements only. Both are multiples of eight."""

    def resident_bytes(self) -> int | None:
        """Bytes that are in physical memory; None if the system does not tell."""
        ...

    def copied_bytes(self, first: int, last: int) -> int:
        """Bytes that ``copy_out`` writes for these positions."""
        ...

    def copy_out(self, first: int, last: int, out: Bytes) -> int:
        """Copy positions first to last into ``out``; first is a multiple of eight. Returns the bytes written."""
        ...

    def copy_in(self, first: int, last: int, data: Bytes) -> None:
        """Restore the result of ``copy_out`` for the same positions; positions beyond the context are skipped."""

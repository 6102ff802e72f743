"""Places of a model's weights: always in the file's map, optionally also copied to huge pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import MemoryPlanError
from engine.machine import host
from engine.machine.memory import shown_bytes

if TYPE_CHECKING:
    from engine.weights.weights import LowRank, Weights

MMAP = "mmap"
HUGE = "huge"
WEIGHT_MODES = (MMAP, HUGE)
RESERVE_BYTES = 300 << 20
"""Bytes to leave free for the interpreter, the buffers and the rest of the machine."""


@dataclass(frozen=True)
class BothCopies:
    """Memory that weights need in the map and in huge pages at once, without evicting either.

    Attributes:
        copy_bytes: size of the copy.
        needed_bytes: the copy if it does not exist yet, the file's pages (the system counts them as
            available), and the reserve.
        available_bytes: memory available now.
    """

    copy_bytes: int
    needed_bytes: int
    available_bytes: int

    @property
    def is_enough(self) -> bool:
        """Whether both fit."""
        return self.needed_bytes <= self.available_bytes


class WeightModes:
    """Weights in each mode, copied when first needed.

    Args:
        mapped: the weights in the file's map.
        shown_name: the file's name, for messages.
    """

    def __init__(self, mapped: Weights, shown_name: str) -> None:
        self._mapped = mapped
        self._shown_name = shown_name
        self._copied: Weights | None = None

    def in_mode(self, mode: str, progress: Callable[[int, int], None]) -> Weights:
        """Return the weights in one mode, copying them first if necessary.

        Raises:
            MemoryPlanError: the copy does not fit into memory.
        """
        if mode == MMAP:
            return self._mapped
        if self._copied is None:
            self._check_room()
            self._copied = self._mapped.copied_to_huge_pages(progress)
        return self._copied

    def adapt(self, low_ranks: Mapping[str, LowRank]) -> None:
        """Make adapters change the weights in both modes, for plans that are written from now
        on."""
        for weights in filter(None, (self._mapped, self._copied)):
            weights.low_ranks = low_ranks

    def let_copy_go(self) -> None:
        """Drop the copy; its memory is freed once no session uses it."""
        self._copied = None

    def room_for_both(self) -> BothCopies:
        """Return the memory needed to have both modes at once, and the memory available."""
        size_bytes = self._mapped.memory_bytes
        if self._copied is not None:
            missing = 0
        else:
            missing = size_bytes
        return BothCopies(
            size_bytes, missing + size_bytes + RESERVE_BYTES, host.available_memory_bytes()
        )

    def _check_room(self) -> None:
        available = host.available_memory_bytes()
        needed = self._mapped.memory_bytes + RESERVE_BYTES
        if needed > available:
            raise MemoryPlanError(
                f"{self._shown_name}: weights in huge pages need {shown_bytes(needed)} of "
                f"their own, "
                f"{shown_bytes(available)} are available (use weights = mmap)"
            )

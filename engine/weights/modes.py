"""Where a model's weights lie: always in the file's map, and in huge pages too for as long as they are wanted there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import MemoryPlanError
from engine.machine import host
from engine.machine.memory import shown_bytes

if TYPE_CHECKING:
    from engine.weights.weights import Weights

MMAP, HUGE = "mmap", "huge"
WEIGHT_MODES = (MMAP, HUGE)
RESERVE_BYTES = 300 << 20
"""Left to the interpreter, the buffers and the rest of the machine."""


@dataclass(frozen=True)
class RoomForBoth:
    """What it takes to have the weights in the map and in huge pages at once, without pushing either out of memory.

    Attributes:
        needed_bytes: of the copy that is not there yet, of the file's pages, which count as available although they
            are wanted, and of the reserve.
    """

    copy_bytes: int
    needed_bytes: int
    available_bytes: int

    @property
    def is_enough(self) -> bool:
        """Whether both fit."""
        return self.needed_bytes <= self.available_bytes


class WeightModes:
    """The weights in every mode that is at hand.

    Args:
        mapped: as the file has them.
        shown_name: of the file, for messages.
    """

    def __init__(self, mapped: Weights, shown_name: str) -> None:
        self._mapped, self._shown_name = mapped, shown_name
        self._copied: Weights | None = None

    def in_mode(self, mode: str, progress: Callable[[int, int], None]) -> Weights:
        """Return the weights in one mode, copying them first where that has not been done.

        Raises:
            MemoryPlanError: there is no room for the copy.
        """
        if mode == MMAP:
            return self._mapped
        if self._copied is None:
            self._check_room()
            self._copied = self._mapped.copied_to_huge_pages(progress)
        return self._copied

    def let_copy_go(self) -> None:
        """Give the copy's memory back once nobody else holds it."""
        self._copied = None

    def room_for_both(self) -> RoomForBoth:
        """Return what having both modes at once takes, and what there is."""
        size_bytes = self._mapped.total_bytes
        missing = 0 if self._copied is not None else size_bytes
        return RoomForBoth(size_bytes, missing + size_bytes + RESERVE_BYTES, host.available_memory_bytes())

    def _check_room(self) -> None:
        available, wanted = host.available_memory_bytes(), self._mapped.total_bytes + RESERVE_BYTES
        if wanted > available:
            raise MemoryPlanError(
                f"{self._shown_name}: weights in huge pages need {shown_bytes(wanted)} of their own, "
                f"{shown_bytes(available)} are available (use weights = mmap)"
            )

"""Threads and memory modes in use, those remembered, and requests to change them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from app.program.state import TunedChoice
from app.text.record import record


@record
class ThreadsInUse:
    """The choice in use, and the one for the next start. As a wish: the choice to use.

    Attributes:
        remembered: for this machine and model; None where nothing is.
        most: threads there is room for.
    """

    now: TunedChoice
    remembered: TunedChoice | None = None
    most: int = 1


class ThreadWishes:
    """The screen's thread wishes, the engine's grants between two steps; the latest wish is the one that counts."""

    def __init__(self) -> None:
        self._wishes: deque[ThreadsInUse] = deque(maxlen=1)
        self.in_use: ThreadsInUse | None = None
        """None while there is no model. Only the engine's thread sets it."""
        self.grant: Callable[[], None] = _grant_nothing
        """Called by the engine's thread wherever no step is being computed; costs nothing without a wish."""

    def wish(self, wanted: ThreadsInUse) -> None:
        """Ask for other threads."""
        self._wishes.append(wanted)

    def take(self) -> ThreadsInUse | None:
        """Return the wish that stands, and forget it."""
        return self._wishes.pop() if self._wishes else None


def _grant_nothing() -> None:
    pass

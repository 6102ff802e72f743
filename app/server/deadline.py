"""A deadline that is moved often and seldom reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    """Time at which a function is called, unless the time is moved or cleared before.

    To move it costs little more than to read the clock, since its timer in the event loop is only
    replaced when it ends. A timer or a task for each piece of a reply would cost the event loop as
    much as the piece itself.

    Args:
        on_reach: Function to call.

    Attributes:
        was_reached: Whether the function was called.
    """

    def __init__(self, on_reach: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_reach = on_reach
        self.was_reached = False
        self._time_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, patience_s: float) -> None:
        """Move the deadline to a time from now."""
        self._time_s = self._loop.time() + patience_s
        if self._timer is not None and self._timer.when() > self._time_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._time_s, self._check)

    def clear(self) -> None:
        """Remove the deadline; its timer runs on and calls nothing."""
        self._time_s = None

    def close(self) -> None:
        """Remove the deadline and its timer, which would keep the function in memory."""
        self._time_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """Call the function if the deadline is reached, or set the timer again."""
        self._timer = None
        if self._time_s is None:
            return
        if self._time_s > self._loop.time():
            self._timer = self._loop.call_at(self._time_s, self._check)
        else:
            self._time_s = None
            self.was_reached = True
            self._on_reach()

"""How many threads of this process work, of how many there are, and what the drawing one costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from app.machine.paced import or_none

WORKING_SHARE = 0.1
"""Of a core: who takes less has only looked whether there is work."""


class Threads:
    """Counts threads by the processor time they took between two readings."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._before: dict[int, float] = {}

    def working_of(self, interval_s: float) -> tuple[int | None, int | None]:
        """Return threads working and threads existing; the first is None at the first call."""
        threads = or_none(lambda: self._process.threads())
        if threads is None:
            return None, None
        spent_s = {thread.id: thread.user_time + thread.system_time for thread in threads}
        before, self._before = self._before, spent_s
        if not before or interval_s <= 0:
            return None, len(spent_s)
        took_s = (seconds - before.get(number, 0.0) for number, seconds in spent_s.items())
        return sum(seconds >= WORKING_SHARE * interval_s for seconds in took_s), len(spent_s)


class InterfaceMeter:
    """Share of one core that the calling thread takes: the one that draws."""

    def __init__(self, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        self._cpu_clock = cpu_clock
        self._before: tuple[float, float] | None = None

    def share(self, now_s: float) -> float | None:
        """Return the share since the last call; None at the first, and where threads are not timed."""
        spent_s = or_none(self._cpu_clock)
        before, self._before = self._before, (now_s, spent_s) if spent_s is not None else None
        if before is None or spent_s is None or now_s <= before[0]:
            return None
        return max(0.0, spent_s - before[1]) / (now_s - before[0])

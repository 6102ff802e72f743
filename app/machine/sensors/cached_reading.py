"""Readings taken no more often than their own cost allows, and how fast what they count grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

Reading = TypeVar("Reading")

MAX_SHARE = 0.002
"""Of the time, for any one reading: what takes 10 ms is read every 5 s at most."""


class CachedReading(Generic[Reading]):
    """Keeps the last value until the next one is due; any exception of ``read`` means that there is
    none."""

    def __init__(
        self,
        read: Callable[[], Reading | None],
        period_s: float,
        cost_clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._read = read
        self._period_s = period_s
        self._cost_clock = cost_clock
        self._due_s = float("-inf")
        self._value: Reading | None = None

    def get(self, now_s: float) -> Reading | None:
        """Return the reading, taken now if it is due."""
        if now_s >= self._due_s:
            began_s = self._cost_clock()
            self._value = or_none(self._read)
            cost_s = self._cost_clock() - began_s
            self._due_s = now_s + max(self._period_s, cost_s / MAX_SHARE)
        return self._value


def or_none(read: Callable[[], Reading | None]) -> Reading | None:
    """Take a reading; a system that does not give it, in whatever way, has none."""
    try:
        return read()
    except Exception:
        return None


class Rate:
    """How fast a count grows, a second."""

    def __init__(self, count: Callable[[], float]) -> None:
        self._count = count
        self._before: tuple[float, float] | None = None

    def since_last(self, now_s: float) -> float | None:
        """Return the rate since the last call; None at the first, and where the system does not
        count."""
        total = or_none(self._count)
        before = self._before
        if total is None:
            self._before = None
        else:
            self._before = (now_s, total)
        if total is None or before is None or now_s <= before[0]:
            return None
        return max(0.0, total - before[1]) / (now_s - before[0])

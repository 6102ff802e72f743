"""Readings that are taken rarely enough to cost little, and rates of counters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

Reading = TypeVar("Reading")

MAX_SHARE = 0.001
"""Limit on the share of time for a reading: one that takes 10 ms is taken every 10 s at most."""


class CachedReading(Generic[Reading]):
    """A reading that is taken again when it is due. An exception counts as no value."""

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
        """Return the value, read again if it is due."""
        if now_s >= self._due_s:
            began_s = self._cost_clock()
            self._value = or_none(self._read)
            cost_s = self._cost_clock() - began_s
            self._due_s = now_s + max(self._period_s, cost_s / MAX_SHARE)
        return self._value


def or_none(read: Callable[[], Reading | None]) -> Reading | None:
    """Return a reading; None if the system does not provide it."""
    try:
        return read()
    except Exception:
        return None


class Rate:
    """Growth of a counter per second."""

    def __init__(self, count: Callable[[], float]) -> None:
        self._count = count
        self._last: tuple[float, float] | None = None

    def since_last(self, now_s: float) -> float | None:
        """Return the rate since the last call; None at first, or if the system does not count."""
        total = or_none(self._count)
        last = self._last
        if total is None:
            self._last = None
        else:
            self._last = (now_s, total)
        if total is None or last is None or now_s <= last[0]:
            return None
        return max(0.0, total - last[1]) / (now_s - last[0])

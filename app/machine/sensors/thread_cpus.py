"""Processor time of this process's threads, and the CPU on which each of them last ran."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

_MOST_BYTES = 2048
_MOST_THREADS = 2048
_MOST_CPUS = 1 << 16
# Positions in "stat" after the name, which ends with the last bracket.
_USER_TICKS = 11
_SYSTEM_TICKS = 12
_CPU = 36


class ThreadState(NamedTuple):
    """State of a thread."""

    spent_s: float
    """Processor time since its start."""
    cpu: int | None = None
    """Number of the logical CPU on which it runs or last ran; None if unknown."""


class ThreadStates:
    """Reader of the states of all threads, from ``task`` in a process's directory of /proc, and
    from psutil where there is none.
    """

    def __init__(self, tasks: Path, process: Any) -> None:
        self._tasks = tasks
        self._process = process
        self._ticks_per_s = 100.0
        if hasattr(os, "sysconf"):
            self._ticks_per_s = float(os.sysconf("SC_CLK_TCK"))

    def read(self) -> dict[int, ThreadState]:
        """Return the state of each thread by its number. May raise what the system raises."""
        try:
            names = os.listdir(self._tasks)
        except OSError:
            return {
                thread.id: ThreadState(thread.user_time + thread.system_time)
                for thread in self._process.threads()
            }
        states = {}
        for name in names[:_MOST_THREADS]:
            state = self._state_of(name)
            if state is not None:
                states[int(name)] = state
        return states

    def _state_of(self, name: str) -> ThreadState | None:
        """Return the state of a thread; None if it has ended, or if the text is not as expected."""
        try:
            with open(self._tasks / name / "stat", "rb") as file:
                fields = file.read(_MOST_BYTES).rpartition(b")")[2].split()
            ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
            cpu = int(fields[_CPU])
            int(name)
        except (OSError, ValueError, IndexError):
            return None
        if ticks < 0 or not 0 <= cpu < _MOST_CPUS:
            return None
        return ThreadState(ticks / self._ticks_per_s, cpu)

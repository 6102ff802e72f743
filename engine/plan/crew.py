"""Crew: the threads of one model, the caller's first, which share one run at a time.

Followers stay in compiled code without the GIL and sleep between jobs. A crew does not know what a
plan computes.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import numpy as np

from engine.errors import Cancelled, ThreadsRefusedError
from engine.kernels.entries import entry
from engine.kernels.records import CREW, CREW_BYTES
from engine.machine import host
from engine.machine.memory import Memory

MOST_THREADS = 128
"""Limit on the threads of a crew; a job word can hold 254."""


class Crew:
    """Threads that run plans together.

    Args:
        pinned: Bind each follower to one logical CPU, physical cores first. The caller's thread
            stays free.
    """

    def __init__(self, pinned: bool = False) -> None:
        self._state = Memory(CREW_BYTES)
        self._words = self._state.array(np.int64, (CREW_BYTES // 8,))
        self._followers: list[threading.Thread] = []
        self._pinned = pinned
        self._closed = False

    def run(self, table: tuple[int, int], n_threads: int, times: int = 0) -> bool:
        """Run a plan's table once with ``n_threads`` threads; blocks without the GIL.

        Args:
            times: Address of int64 cycle counts, one per row, to add to; 0 takes no times.

        Returns:
            False if the run was cancelled.

        Raises:
            ThreadsRefusedError: The system refuses this number of threads; nothing was run.
        """
        self._start_missing_threads(n_threads)
        for field, word in (
            (CREW.table, table[0]),
            (CREW.n_operations, table[1]),
            (CREW.times, times),
        ):
            self._words[field // 8] = word
        entry("lead timed" if times else "lead")(self._state.address, 0, n_threads)
        return not self._words[CREW.cancelled // 8]

    def run_to_end(self, table: tuple[int, int], n_threads: int) -> None:
        """Run a plan's table once, to measure its time.

        Raises:
            Cancelled: The run was cancelled, so its time means nothing.
        """
        if not self.run(table, n_threads):
            raise Cancelled("the measurement was stopped")

    @property
    def pinned(self) -> bool:
        """Whether each follower is bound to one logical CPU."""
        return self._pinned

    def set_pinned(self, pinned: bool) -> None:
        """Bind the followers, or release them; without effect outside Linux."""
        if pinned != self._pinned:
            self._pinned = pinned
            for number, follower in enumerate(self._followers, start=1):
                if follower.native_id is not None:
                    _bind(follower.native_id, number if pinned else None)

    def cancel(self) -> None:
        """Stop this run, and the next, at its next barrier. Any thread may call it."""
        self._words[CREW.cancel // 8] = 1

    def clear_cancel(self) -> None:
        """Forget an earlier cancel."""
        self._words[CREW.cancel // 8] = 0

    def close(self) -> None:
        """End the followers. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            if self._followers:
                entry("dismiss")(self._state.address, 0, 0)
            for follower in self._followers:
                follower.join()

    def _start_missing_threads(self, n_threads: int) -> None:
        while len(self._followers) < n_threads - 1:
            number = len(self._followers) + 1
            seen = int(self._words[CREW.job // 8])
            follower = threading.Thread(
                target=self._follow,
                args=(number, seen),
                name=f"{host.CREW_NAME}{number}",
                daemon=True,
            )
            try:
                follower.start()
            except (RuntimeError, MemoryError):  # a limit on processes, most often a container's
                advice = f"set threads to {number}, or raise its limit on processes"
                raise ThreadsRefusedError(
                    f"the system refuses a thread more than {number} ({advice})"
                ) from None
            self._followers.append(follower)

    def _follow(self, number: int, seen: int) -> None:
        if self._pinned:
            _bind(0, number)
        entry("follow")(self._state.address, number, seen)


def _bind(thread_id: int, number: int | None) -> None:
    """Bind a thread (0 for the caller) to the CPU of its number in the crew, or to all CPUs."""
    if hasattr(os, "sched_setaffinity"):
        cpus = host.cores().logical
        with suppress(OSError):
            os.sched_setaffinity(thread_id, cpus if number is None else {cpus[number % len(cpus)]})

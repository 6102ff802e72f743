"""The crew: the threads of one model, the caller's first. They share one walk at a time.

Followers live in compiled code and hold no GIL; between jobs they sleep. Knows nothing of what a
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
"""A job word has room for 254; no machine of ours for a quarter of that."""


class Crew:
    """Threads that walk plans together.

    Args:
        pinned: bind each follower to one logical CPU, physical cores first. The caller's thread
            stays free.
    """

    def __init__(self, pinned: bool = False) -> None:
        self._state = Memory(CREW_BYTES)
        self._words = self._state.array(np.int64, (CREW_BYTES // 8,))
        self._followers: list[threading.Thread] = []
        self._pinned = pinned
        self._closed = False

    def run(self, table: tuple[int, int], n_threads: int, times: int = 0) -> bool:
        """Run a plan's table once, with ``n_threads`` threads; blocks without the GIL.

        Args:
            times: address of int64 cycle counts, one per row, to add to; 0 takes no times.

        Returns:
            False if it was cancelled on the way.

        Raises:
            ThreadsRefusedError: the system refuses this number of threads; nothing was run.
        """
        self._hire(n_threads)
        for field, word in (
            (CREW.table, table[0]),
            (CREW.n_operations, table[1]),
            (CREW.times, times),
        ):
            self._words[field // 8] = word
        entry("lead timed" if times else "lead")(self._state.address, 0, n_threads)
        return not self._words[CREW.cancelled // 8]

    def run_to_end(self, table: tuple[int, int], n_threads: int) -> None:
        """Run a plan's table once, to be timed as a whole.

        Raises:
            Cancelled: it was cancelled, so its time says nothing.
        """
        if not self.run(table, n_threads):
            raise Cancelled("the measurement was stopped")

    @property
    def pinned(self) -> bool:
        """Whether each follower keeps to one logical CPU."""
        return self._pinned

    def set_pinned(self, pinned: bool) -> None:
        """Bind the followers, or let them go where the system puts them; without effect outside
        Linux."""
        if pinned != self._pinned:
            self._pinned = pinned
            for number, follower in enumerate(self._followers, start=1):
                if follower.native_id is not None:
                    _bind(follower.native_id, number if pinned else None)

    def cancel(self) -> None:
        """Make the running walk, and the next, stop at its next barrier. Any thread may call it."""
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

    def _hire(self, n_threads: int) -> None:
        while len(self._followers) < n_threads - 1:
            number = len(self._followers) + 1
            seen = int(self._words[CREW.job // 8])
            follower = threading.Thread(
                target=self._follow, args=(number, seen), name=f"crew-{number}", daemon=True
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
    """Bind a thread (0 for the caller) to the CPU of a place in the crew, or to all that the
    process may use."""
    if hasattr(os, "sched_setaffinity"):
        cpus = host.cores().logical
        with suppress(OSError):
            os.sched_setaffinity(thread_id, cpus if number is None else {cpus[number % len(cpus)]})

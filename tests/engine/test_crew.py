"""Threads that share a walk: every row is run by all of them, in order, and a cancel ends it for all at once."""

import ctypes

import numpy as np
import pytest

from engine import interpreter
from engine.crew import Crew

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class Trace:
    """A table whose operations are Python callbacks that note who ran them."""

    def __init__(self, n_rows: int) -> None:
        self.seen: list[tuple[int, int, int]] = []
        self.on_row = lambda row, thread: None
        self._callback = _SIGNATURE(self._note)
        address = ctypes.cast(self._callback, ctypes.c_void_p).value
        self.rows = np.array([[address, row, interpreter.BARRIER] for row in range(n_rows)], np.int64)

    def _note(self, row: int, thread: int, n_threads: int) -> None:
        self.seen.append((row, thread, n_threads))
        self.on_row(row, thread)

    @property
    def table(self) -> tuple[int, int]:
        return self.rows.ctypes.data, len(self.rows)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5])
def test_every_thread_runs_every_row_behind_one_barrier_a_row(n_threads: int) -> None:
    crew, trace = Crew(), Trace(20)
    assert crew.walk(trace.table, n_threads)
    assert [row for row, _, _ in trace.seen] == sorted(row for row, _, _ in trace.seen)
    assert sorted(trace.seen) == [(row, t, n_threads) for row in range(20) for t in range(n_threads)]
    crew.close()


def test_the_number_of_threads_may_change_from_walk_to_walk() -> None:
    crew = Crew()
    for n_threads in (3, 1, 2, 4, 1, 3) * 10:
        trace = Trace(4)
        assert crew.walk(trace.table, n_threads)
        assert len(trace.seen) == 4 * n_threads
    crew.close()


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_a_cancel_ends_the_walk_for_all_threads_at_the_same_row(n_threads: int) -> None:
    crew, trace = Crew(), Trace(20)
    trace.on_row = lambda row, thread: crew.cancel() if (row, thread) == (7, n_threads - 1) else None
    assert not crew.walk(trace.table, n_threads)
    last = max(row for row, _, _ in trace.seen)
    assert last in (7, 8)
    assert [row for row, _, _ in trace.seen].count(last) == n_threads
    crew.rearm()
    again = Trace(20)
    assert crew.walk(again.table, n_threads)
    crew.close()


def test_a_closed_crew_leaves_no_thread_behind() -> None:
    crew = Crew()
    crew.walk(Trace(2).table, 3)
    followers = list(crew._followers)
    crew.close()
    crew.close()
    assert not any(follower.is_alive() for follower in followers)

"""Threads that share a run: all threads run each row in order, and cancellation ends the run for
all of them."""

import ctypes
import os
import threading

import numpy as np
import pytest
from numba import njit

from engine.errors import EngineError
from engine.kernels.records import BARRIER, COUNTER_BYTES, MATMUL
from engine.kernels.share import CLAIM_BYTES, claim_rows
from engine.plan.crew import Crew

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@njit(nogil=True, error_model="numpy")
def claim(op, thread, n_threads, turn):
    return claim_rows(op, 8, CLAIM_BYTES, thread, n_threads, turn)


class Trace:
    """Table whose operations are Python callbacks that record their threads."""

    def __init__(self, n_rows: int) -> None:
        self.seen: list[tuple[int, int, int]] = []
        self.on_row = lambda row, thread: None
        self._callback = _SIGNATURE(self._note)
        address = ctypes.cast(self._callback, ctypes.c_void_p).value
        self.rows = np.array([[address, row, BARRIER] for row in range(n_rows)], np.int64)

    def _note(self, row: int, thread: int, n_threads: int) -> None:
        self.seen.append((row, thread, n_threads))
        self.on_row(row, thread)

    def walk(self, crew: Crew, n_threads: int) -> bool:
        """Run this table, and keep it alive meanwhile, as the crew only has addresses."""
        return crew.run((self.rows.ctypes.data, len(self.rows)), n_threads)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5])
def test_every_thread_runs_each_row_with_one_barrier_after_it(n_threads: int) -> None:
    crew = Crew()
    trace = Trace(20)
    assert trace.walk(crew, n_threads)
    assert [row for row, _, _ in trace.seen] == sorted(row for row, _, _ in trace.seen)
    assert sorted(trace.seen) == [
        (row, t, n_threads) for row in range(20) for t in range(n_threads)
    ]
    crew.close()


def test_the_number_of_threads_may_change_between_runs() -> None:
    crew = Crew()
    for n_threads in (3, 1, 2, 4, 1, 3) * 10:
        trace = Trace(4)
        assert trace.walk(crew, n_threads)
        assert len(trace.seen) == 4 * n_threads
    crew.close()


def test_a_refused_thread_gives_a_notice_and_fewer_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crew = Crew()
    trace = Trace(4)
    start = threading.Thread.start

    def refuse_the_second(thread: threading.Thread) -> None:
        if thread.name == "crew-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_second)
    with pytest.raises(EngineError, match=r"refuses a thread more than 2 \(set threads to 2, or"):
        trace.walk(crew, 3)
    assert not trace.seen
    assert trace.walk(crew, 2)
    assert len(trace.seen) == 8
    crew.close()


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_a_cancel_stops_all_threads_at_the_same_row(n_threads: int) -> None:
    crew = Crew()
    trace = Trace(20)
    trace.on_row = lambda row, thread: (
        crew.cancel() if (row, thread) == (7, n_threads - 1) else None
    )
    assert not trace.walk(crew, n_threads)
    last = max(row for row, _, _ in trace.seen)
    assert last in (7, 8)
    assert [row for row, _, _ in trace.seen].count(last) == n_threads
    crew.clear_cancel()
    again = Trace(20)
    assert again.walk(crew, n_threads)
    crew.close()


def test_a_closed_crew_leaves_no_threads() -> None:
    crew = Crew()
    Trace(2).walk(crew, 3)
    followers = list(crew._followers)
    crew.close()
    crew.close()
    assert not any(follower.is_alive() for follower in followers)


@pytest.mark.parametrize(
    ("n_rows", "n_threads"), [(61, 1), (61, 2), (4096, 3), (8, 5), (1, 2), (100_000, 4)]
)
def test_every_row_is_claimed_by_exactly_one_thread(n_rows: int, n_threads: int) -> None:
    counters = np.zeros(n_threads * COUNTER_BYTES // 8, np.int64)
    record = np.zeros(len(MATMUL), np.int64)
    for name, value in (("n_rows", n_rows), ("row_bytes", 1152), ("claims", counters.ctypes.data)):
        record[getattr(MATMUL, name) // 8] = value
    claimed = np.zeros(n_rows, np.int64)
    random = np.random.default_rng(n_rows)
    turns = [0] * n_threads
    while any(turn < n_threads for turn in turns):
        for thread in random.permutation(n_threads)[: max(1, n_threads - 1)]:
            first, last, turns[thread] = claim(
                record.ctypes.data, int(thread), n_threads, turns[thread]
            )
            claimed[first:last] += 1
    assert (claimed == 1).all()


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound to CPUs here"
)
def test_threads_are_pinned_and_released() -> None:
    allowed = os.sched_getaffinity(0)
    crew = Crew()
    Trace(2).walk(crew, 2)
    follower = crew._followers[0].native_id
    assert follower is not None
    assert os.sched_getaffinity(follower) == allowed
    crew.set_pinned(True)
    assert len(os.sched_getaffinity(follower)) == 1
    assert Trace(2).walk(crew, 3)
    assert len(os.sched_getaffinity(crew._followers[1].native_id)) == 1  # started while pinned
    assert os.sched_getaffinity(0) == allowed
    crew.set_pinned(False)
    assert {frozenset(os.sched_getaffinity(f.native_id)) for f in crew._followers} == {
        frozenset(allowed)
    }
    crew.close()

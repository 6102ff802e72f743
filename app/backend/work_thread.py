"""A thread that does the work of a fair queue, one piece after another.

A plain daemon thread: a compilation cannot be cancelled and must not delay the end of the program.
Workers of Textual and asyncio would, since their executors are joined at exit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Generic, TypeVar

from app.program.background import fulfil

T = TypeVar("T")


class QueueFullError(Exception):
    """The queue has no room."""


class FairQueue(Generic[T]):
    """Queue that serves its clients in turn, and the entries of each client in order.

    Any thread may call its methods.

    Args:
        limit: largest number of entries.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._clients: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        with self._lock:
            return self._length()

    def put(self, client: str, entry: T, limit: int | None = None) -> None:
        """Add an entry after the earlier ones of its client.

        Raises QueueFullError: the queue has ``limit`` entries, or as many as it may ever have.
        """
        if limit is None:
            limit = self._limit
        with self._lock:
            if self._length() >= limit:
                raise QueueFullError
            self._clients.setdefault(client, deque()).append(entry)

    def put_fairly(self, client: str, entry: T) -> T | None:
        """Add an entry; if the queue is full, remove the last entry of the client with most.

        Returns:
            The entry that was removed; None if there was room.

        Raises:
            QueueFullError: the queue is full, and no client has clearly more entries than this one.
        """
        with self._lock:
            removed: T | None = None
            if self._length() >= self._limit:
                n_own = len(self._clients.get(client, ()))
                longest = max(self._clients.values(), key=len, default=deque[T]())
                if len(longest) < n_own + 2:
                    raise QueueFullError
                removed = longest.pop()
            self._clients.setdefault(client, deque()).append(entry)
            return removed

    def remove(self, entry: T) -> bool:
        """Remove an entry; return False if it is not in the queue."""
        with self._lock:
            for client, entries in self._clients.items():
                if entry in entries:
                    entries.remove(entry)
                    if not entries:
                        del self._clients[client]
                    return True
        return False

    def entries(self, client: str) -> list[T]:
        """Return the entries of a client in order."""
        with self._lock:
            return list(self._clients.get(client, ()))

    def take(self) -> T | None:
        """Remove and return the next entry; None if the queue is empty."""
        with self._lock:
            if not self._clients:
                return None
            client, entries = self._clients.popitem(last=False)
            entry = entries.popleft()
            if entries:
                self._clients[client] = entries
            return entry

    def _length(self) -> int:
        return sum(map(len, self._clients.values()))


Work = Callable[[], object]

THREAD_NAME = "jalopy-engine"
"""Name of the thread that runs the engine."""
_POLL_S = 0.2


class WorkThread:
    """A thread with a queue of work.

    Args:
        queue_limit: largest number of pieces of work that wait.
        do_short_work: does short work and returns whether more of it waits. The thread calls it
            whenever it is woken, and longer work calls it between two of its steps.
        on_end: called in the thread when it ends.
    """

    def __init__(
        self,
        queue_limit: int,
        do_short_work: Callable[[], bool] = lambda: False,
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self.queue: FairQueue[Work] = FairQueue(queue_limit)
        self._do_short_work = do_short_work
        self._on_end = on_end
        self._wake_up = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def is_closing(self) -> bool:
        """Whether the thread should end."""
        return self._closing.is_set()

    @property
    def has_other_work(self) -> bool:
        """Whether work of low priority should end: other work waits, or the thread should end."""
        return self.is_closing or len(self.queue) > 0

    def start(self) -> None:
        """Start the thread, which begins with the work submitted before."""
        self._thread.start()

    def submit(self, work: Work, client: str = "", limit: int | None = None) -> None:
        """Add work to the queue; an exception of the work ends the thread.

        Raises QueueFullError: the queue has no room.
        """
        self.queue.put(client, work, limit)
        self.wake()

    def wake(self) -> None:
        """Let the thread do short work now if it is idle."""
        self._wake_up.set()

    def run(self, work: Callable[[], T], on_interrupt: Callable[[], None] | None = None) -> T:
        """Do work in the thread and return its result or raise its exception.

        The calling thread only waits, so it handles signals at once: Python runs no signal handler
        in a thread while that thread is inside a kernel.

        Args:
            on_interrupt: called for the first KeyboardInterrupt to make the work end early; its
                result still counts. Without it, and the second time, the interrupt is raised and
                the work is abandoned.
        """
        answer: Future[T] = Future()
        while not answer.done():
            try:
                # The interrupt may have come before the work was queued, so submit it again;
                # ``_do_once`` does it only once.
                self.submit(partial(_do_once, answer, work))
                # A system may deliver the signal to another thread, which does not wake this one.
                while not wait([answer], _POLL_S).done:
                    pass
            except KeyboardInterrupt:
                if on_interrupt is None:
                    raise
                on_interrupt()
                on_interrupt = None
        return answer.result()

    def close(self, patience_s: float) -> bool:
        """End the thread after its current work; return False if that takes longer than
        ``patience_s``."""
        self._closing.set()
        self.wake()
        if self.is_alive:
            self._thread.join(patience_s)
        return not self.is_alive

    def _run(self) -> None:
        while not self.is_closing:
            self._wake_up.wait()
            self._wake_up.clear()
            while not self.is_closing:
                has_more = self._do_short_work()
                work = self.queue.take()
                if work is not None:
                    work()
                elif not has_more:
                    break
        self._on_end()


def start_work_thread() -> WorkThread:
    """Return a running thread for a command without a screen."""
    thread = WorkThread(queue_limit=8)
    thread.start()
    return thread


def _do_once(answer: Future[T], work: Callable[[], T]) -> None:
    if not answer.done():
        fulfil(answer, work)


def engine_thread_numbers() -> set[int]:
    """Return the system's numbers of the threads that compute."""
    from engine.machine.host import CREW_NAME  # the first frame would wait for it

    return {
        thread.native_id
        for thread in threading.enumerate()
        if thread.native_id and thread.name.startswith((THREAD_NAME, CREW_NAME))
    }

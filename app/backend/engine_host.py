"""The thread that owns an engine: what waits for it in a fair line is done one after another,
whatever it is.

A plain daemon thread: a compilation cannot be cancelled, and must not hold up the end of the
program, as a worker of Textual or asyncio would, whose executor is joined at exit.
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

Work = Callable[[], object]

_LOOK_S = 0.2


class LineFullError(Exception):
    """Too much waits."""


class WaitingLine(Generic[T]):
    """A queue that serves its peers in turn, each one's items in their order.

    Any thread may call.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._peers: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._peers.values()))

    def join(self, peer: str, item: T, most: int | None = None) -> None:
        """Wait after what this peer has sent before.

        Raises LineFullError: ``most`` wait, or as many as ever may.
        """
        with self._lock:
            if sum(map(len, self._peers.values())) >= (self._most if most is None else most):
                raise LineFullError
            self._peers.setdefault(peer, deque()).append(item)

    def join_fairly(self, peer: str, item: T) -> T | None:
        """Wait as after ``join``.

        Where the line is full, the last item of the peer with most gives way.

        Returns:
            The item that waits no longer; None if there was room.

        Raises:
            LineFullError: too much waits, and this peer has as much of it as any other.
        """
        with self._lock:
            given_up: T | None = None
            if sum(map(len, self._peers.values())) >= self._most:
                n_waiting = len(self._peers.get(peer, ()))
                longest = max(self._peers.values(), key=len, default=deque[T]())
                if len(longest) < n_waiting + 2:
                    raise LineFullError
                given_up = longest.pop()
            self._peers.setdefault(peer, deque()).append(item)
            return given_up

    def leave(self, item: T) -> bool:
        """Stop waiting; False where the item no longer waits."""
        with self._lock:
            for peer, items in self._peers.items():
                if item in items:
                    items.remove(item)
                    if not items:
                        del self._peers[peer]
                    return True
        return False

    def take(self) -> T | None:
        """Return whose turn it is, None where no one waits; the peer goes after the others."""
        with self._lock:
            if not self._peers:
                return None
            peer, items = self._peers.popitem(last=False)
            item = items.popleft()
            if items:
                self._peers[peer] = items
            return item


class EngineHost:
    """One thread and the line of work that waits for it.

    Args:
        most_waiting: limit on the work that waits.
        between: does short work, and returns whether more of it waits; called whenever the thread
            is woken, and by longer work between two of its steps.
        end: called in the thread when it ends.
    """

    def __init__(
        self,
        most_waiting: int,
        between: Callable[[], bool] = lambda: False,
        end: Callable[[], object] = lambda: None,
    ) -> None:
        self.line: WaitingLine[Work] = WaitingLine(most_waiting)
        self._between = between
        self._end = end
        self._woken = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jalopy-engine", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def is_closing(self) -> bool:
        """Whether it shall end."""
        return self._closing.is_set()

    @property
    def is_wanted(self) -> bool:
        """Whether the thread has something better to do than what no one asked for."""
        return self.is_closing or len(self.line) > 0

    def start(self) -> None:
        """Begin to work; what was submitted before is done first."""
        self._thread.start()

    def submit(self, work: Work, peer: str = "", most: int | None = None) -> None:
        """Do work when its turn comes; what it raises ends the thread.

        Raises LineFullError: too much waits.
        """
        self.line.join(peer, work, most)
        self.wake()

    def wake(self) -> None:
        """Do short work now, if nothing runs that does it."""
        self._woken.set()

    def run(self, work: Callable[[], T], on_interrupt: Callable[[], None] | None = None) -> T:
        """Do the work and return its result, or raise its exception; the calling thread only waits.

        So signals are answered at once: while a kernel runs, Python runs no handler in the thread
        that called it.

        Args:
            on_interrupt: called for the first KeyboardInterrupt, to make the work end early; its
                result still counts. Without it, or the second time, the interrupt is raised here
                and the work is left.
        """
        answer: Future[T] = Future()
        while not answer.done():
            try:
                # Again after an interrupt, which may have come before it was in the line: it is
                # done once.
                self.submit(partial(_do_once, answer, work))
                # A system may hand the signal to another thread, which does not wake this one.
                while not wait([answer], _LOOK_S).done:
                    pass
            except KeyboardInterrupt:
                if on_interrupt is None:
                    raise
                on_interrupt()
                on_interrupt = None
        return answer.result()

    def close(self, patience_s: float) -> bool:
        """End the thread after the work that runs; False if that takes longer, as a compilation
        may."""
        self._closing.set()
        self.wake()
        if self.is_alive:
            self._thread.join(patience_s)
        return not self.is_alive

    def _run(self) -> None:
        while not self.is_closing:
            self._woken.wait()
            self._woken.clear()
            while not self.is_closing:
                has_more = self._between()
                work = self.line.take()
                if work is not None:
                    work()
                elif not has_more:
                    break
        self._end()


def engine_host() -> EngineHost:
    """Return a running host for a command without a screen."""
    host = EngineHost(most_waiting=8)
    host.start()
    return host


def _do_once(answer: Future[T], work: Callable[[], T]) -> None:
    if not answer.done():
        fulfil(answer, work)

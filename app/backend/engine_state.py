"""State shared by the screen's thread and the engine's: a bounded queue in, a deque and records
out."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.backend.status import EngineStatus
from app.backend.work_thread import WorkThread
from app.machine.sensors.records import EngineFigures
from app.machine.sensors.tuning_conditions import Conditions
from app.machine.tuning.threads_in_use import ThreadsInUse
from app.program.makers import Advice
from app.session.events import Event, TextGenerated, ThoughtGenerated
from engine.errors import Cancelled
from engine.prompt.thinking_mode import ThinkingMode

if TYPE_CHECKING:
    from engine.tuning.report import TuningReport


class IdleWork:
    """Work that no one waits for, one piece at a time: begun and dropped by the screen's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_pending = False
        """Whether there is a piece, begun or not."""
        self.is_dropped = False
        """Whether the piece should end at once."""
        self._session: Any = None

    def begin(self) -> bool:
        """Announce a piece before it is queued; False while another one is not ended."""
        if self.is_pending:
            return False
        self.is_pending = True
        self.is_dropped = False
        return True

    def drop(self) -> None:
        """End the piece, if there is one: in the queue, before its computation or in the middle of
        it."""
        with self._lock:
            self.is_dropped = True
            if self._session is not None:
                self._session.cancel()

    def insist(self) -> None:
        """Cancel once more what should have ended: a session forgets a cancel that comes just
        before it computes."""
        if self.is_dropped:
            self.drop()

    @contextmanager
    def computing(self, session: Any) -> Iterator[bool]:
        """Let ``drop`` cancel the session meanwhile, and never after; yields whether to compute at
        all."""
        with self._lock:
            self._session = session
        try:
            yield not self.is_dropped
        finally:
            with self._lock:
                self._session = None

    def prefill(
        self, session: Any, ids: Sequence[int], on_progress: Callable[[], object] = lambda: None
    ) -> Any:
        """Let a session read tokens until the piece is dropped; returns what it read, None where it
        was dropped."""

        def give_way(*_: int) -> None:
            on_progress()
            if self.is_dropped:
                session.cancel()

        with suppress(Cancelled), self.computing(session) as is_wanted:
            if is_wanted:
                return session.prefill(ids, on_progress=give_way)
            return None
        return None

    def end(self) -> None:
        """The piece is over."""
        self.is_pending = False


QUEUE_LENGTH = 8
FLUSH_S = 0.3


class Stoppable(Protocol):
    """Work that a user waits for."""

    def cancel(self) -> None:
        """End it; any thread may ask."""


QuantizeResult = tuple[tuple[int, ...], str]
"""Tokens of a reply so far, with the beginning that it goes on from, and their text, uncleaned."""


def _nothing() -> QuantizeResult:
    return (), ""


def _no_advice(mode: ThinkingMode) -> Advice:
    return {}


class Wire:
    """State shared by both threads.

    The engine's thread, and those it waits for, emit; the screen's thread drains.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.now_s = clock
        self.host = WorkThread(QUEUE_LENGTH, self._grant, self._end)
        self.status = EngineStatus()
        self.figures = EngineFigures()
        self.is_watched = False
        """Whether a screen shows the figures."""
        self.cancelled = threading.Event()
        self.work: Stoppable | None = None
        """What runs and may be stopped."""
        self.written: Callable[[], QuantizeResult] = _nothing
        """Returns the running reply as far as it is written."""
        self.thinking = ""
        """How much the open model is asked to think with the next request; "" while none is
        open."""
        self.advise: Callable[[ThinkingMode], Advice] = _no_advice
        """Returns what is recommended for the open model."""
        self.idle_work = IdleWork()
        """Work that ends as soon as anything is asked."""
        self.state_path: Path | None = None
        """Beginning of the names of files about the live conversation's states; None where none are
        kept."""
        self.state_trouble = ""
        """Why it is not; "" if it is."""
        self.tuning: TuningReport | None = None
        """Report of the running or last sweep; None before the first with this model."""
        self.tuning_conditions = Conditions()
        """State of the machine during the last sweep."""
        self.threads: ThreadsInUse | None = None
        """In use; None while there is no model."""
        self.requested_threads: deque[ThreadsInUse] = deque(maxlen=1)
        """Other threads, as the screen's thread wishes them; the latest wish is the one that
        counts."""
        self.apply_requested_threads: Callable[[], None] = self.requested_threads.clear
        """Called by the engine's thread wherever no step is being computed; costs nothing without a
        wish."""
        self.patience_s = FLUSH_S
        """Seconds that closing waits for the state of the cache to be on disk."""
        self.arrived = threading.Event()
        """Set with every event, for those who wait for one."""
        self._events: deque[Event] = deque()

    def is_stopped(self) -> bool:
        """Whether what runs is to end."""
        return self.cancelled.is_set() or self.host.is_closing

    def is_wanted(self) -> bool:
        """Whether the engine's thread has something better to do than what no one asked for."""
        return self.host.has_other_work

    def _grant(self) -> bool:
        if self.requested_threads:
            self.apply_requested_threads()
        return False

    def _end(self) -> None:
        """Called in the engine's thread when it ends."""

    def forget_model(self) -> None:
        """No model is open any more."""
        self.thinking = ""
        self.advise = _no_advice
        self.figures = EngineFigures()
        self.apply_requested_threads = self.requested_threads.clear
        self.threads = self.tuning = None
        self.tuning_conditions = Conditions()

    def update(self, **changes: Any) -> None:
        """Replace fields of the status."""
        self.status = replace(self.status, **changes)

    def step(self, **changes: Any) -> None:
        """The same where a step of the computation is over: threads that were wished for are
        granted."""
        self._grant()
        self.update(**changes)

    @contextmanager
    def running(
        self, work: Stoppable, written: Callable[[], QuantizeResult] = _nothing
    ) -> Iterator[None]:
        """Let work be stopped meanwhile, and a reply be read."""
        self.work = work
        self.written = written
        if self.cancelled.is_set():  # asked for in the moment before the work could be seen
            work.cancel()
        try:
            yield
        finally:
            self.work = None
            self.written = _nothing

    def emit(self, event: Event) -> None:
        """Hand an event to the screen."""
        self._events.append(event)
        self.arrived.set()

    def has_news(self) -> bool:
        """Whether there is something to drain; cancels dropped work once more, as ``drain``
        does."""
        self.idle_work.insist()
        return self.arrived.is_set()

    def drain(self) -> list[Event]:
        """Take everything emitted so far, in order, with neighbouring pieces of text joined."""
        self.idle_work.insist()
        self.arrived.clear()
        taken = [self._events.popleft() for _ in range(len(self._events))]
        drained: list[Event] = []
        for kind, run in groupby(taken, type):
            events = list(run)
            if kind is TextGenerated or kind is ThoughtGenerated:
                text = "".join(
                    one.text for one in events if isinstance(one, (TextGenerated, ThoughtGenerated))
                )
                events = [kind(text)]
            drained += events
        return drained

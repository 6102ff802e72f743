"""Connection between the screen and the engine thread: inbox, outbox, progress and cancellation."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from app.backend.engine_state import EngineState
from app.backend.status import EngineStatus
from app.backend.work_thread import WorkThread
from app.machine.tuning.threads_in_use import ThreadsInUse
from app.session.events import Event, TextGenerated, ThoughtGenerated
from app.text.record import record
from engine.errors import Cancelled

FLUSH_S = 0.3


class IdleWork:
    """Work that the engine does while nothing is requested, one piece at a time.

    The screen's thread begins and drops it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_pending = False
        """Whether there is a piece of work, queued or running."""
        self.is_dropped = False
        """Whether the piece should end at once."""
        self.name = ""
        """Name of the piece on a screen; "" if it has a status of its own."""
        self.picture = ""
        """Digest of the file that the encoder reads in the piece; "" while it reads none."""
        self._session: Any = None
        self._finishes_picture = False

    def begin(self, name: str = "") -> bool:
        """Announce a piece before it is queued; return False if another one has not ended."""
        if self.is_pending:
            return False
        self.is_pending = True
        self.name = name
        self.picture = ""
        self.is_dropped = False
        return True

    def drop(self, text: str = "") -> None:
        """End the piece, whether it is queued or running.

        Args:
            text: message that is sent now. If the encoder reads one of its pictures, it finishes
                that first.
        """
        with self._lock:
            self.is_dropped = True
            self._finishes_picture = bool(self.picture) and self.picture in text
            if self._session is not None and not self._finishes_picture:
                self._session.cancel()

    def drop_again(self) -> None:
        """Cancel a dropped piece once more.

        A session forgets a cancel that comes just before it computes.
        """
        if self.is_dropped and not (self._finishes_picture and self.picture):
            self.drop()

    @contextmanager
    def computing(self, session: Any) -> Iterator[bool]:
        """Let ``drop`` cancel the session during the block; yield whether to compute at all."""
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
        """Prefill tokens until the piece is dropped; return the result, or None if it was."""

        def check_dropped(*_: int) -> None:
            on_progress()
            if self.is_dropped:
                session.cancel()

        with suppress(Cancelled), self.computing(session) as may_compute:
            if may_compute:
                return session.prefill(ids, on_progress=check_dropped)
        return None

    def end(self) -> None:
        """Note that the piece has ended."""
        self.is_pending = False


class EngineInbox:
    """Requests of the screen's thread to the engine thread.

    Attributes:
        stop_requested: set to stop the running request, or the next one if none runs.
        idle_work: work that ends as soon as anything is requested.
        requested_threads: threads to use; a newer request replaces an older one.
        applying_threads: request that the engine thread carries out; None if there is none.
        requested_kv_type: type of the KV cache to use after the running reply; "" if there is no
            request.
        is_watched: whether a screen shows the figures of the engine.
        state_path: beginning of the paths of the live conversation's saved states; None if they
            are not saved.
        flush_s: seconds that closing may wait until the state of the KV cache is on disk.
    """

    def __init__(self, worker: WorkThread) -> None:
        self._worker = worker
        self.stop_requested = threading.Event()
        self.idle_work = IdleWork()
        self.requested_threads: deque[ThreadsInUse] = deque(maxlen=1)
        self.applying_threads: ThreadsInUse | None = None
        self.requested_kv_type = ""
        self.is_watched = False
        self.state_path: Path | None = None
        self.flush_s = FLUSH_S

    @property
    def is_closing(self) -> bool:
        """Whether the engine thread should end."""
        return self._worker.is_closing

    @property
    def pending_threads(self) -> ThreadsInUse | None:
        """The newest request for threads that is not in use yet; None if there is none."""
        with suppress(IndexError):
            return self.requested_threads[-1]
        return self.applying_threads

    def is_stopped(self) -> bool:
        """Return whether the running request should end."""
        return self.stop_requested.is_set() or self.is_closing

    def has_other_work(self) -> bool:
        """Return whether work of low priority should end."""
        return self._worker.has_other_work


class Stoppable(Protocol):
    """Work that a user waits for."""

    def cancel(self) -> None:
        """End the work; any thread may call this."""


WrittenReply = tuple[tuple[int, ...], str]
"""Tokens and uncleaned text of a reply so far, with the beginning that it continues."""


def nothing_written() -> WrittenReply:
    """Return an empty reply."""
    return (), ""


@record
class RunningWork:
    """Work that the user can stop, and the reply that it writes."""

    work: Stoppable
    written: Callable[[], WrittenReply] = nothing_written
    """Returns the reply so far; any thread may call it."""


class EngineOutbox:
    """State and events for the screen's thread.

    Attributes:
        state: replaced as a whole by the engine thread.
        running: work that runs and can be stopped; None if there is none.
        arrived: set with every event.
    """

    def __init__(self) -> None:
        self.state = EngineState()
        self.running: RunningWork | None = None
        self.arrived = threading.Event()
        self._events: deque[Event] = deque()

    def emit(self, event: Event) -> None:
        """Report an event."""
        self._events.append(event)
        self.arrived.set()

    def drain(self) -> list[Event]:
        """Remove all events and return them in order, with adjacent pieces of text joined."""
        self.arrived.clear()
        events = [self._events.popleft() for _ in range(len(self._events))]
        drained: list[Event] = []
        for event_type, run in groupby(events, type):
            if event_type is TextGenerated or event_type is ThoughtGenerated:
                text = "".join(
                    event.text
                    for event in run
                    if isinstance(event, (TextGenerated, ThoughtGenerated))
                )
                drained.append(event_type(text))
            else:
                drained += run
        return drained

    def update(self, **changes: Any) -> None:
        """Replace fields of the state."""
        self.state = replace(self.state, **changes)

    def update_status(self, **changes: Any) -> None:
        """Replace fields of the status."""
        self.update(status=replace(self.state.status, **changes))

    @contextmanager
    def running_work(
        self, work: Stoppable, written: Callable[[], WrittenReply] = nothing_written
    ) -> Iterator[None]:
        """Let the screen's thread stop the work and read its reply during the block."""
        self.running = RunningWork(work, written)
        try:
            yield
        finally:
            self.running = None


QUEUE_LENGTH = 8
"""Limit on the requests that wait for the engine thread."""


class EngineLink:
    """Inbox and outbox of the engine thread, as its backends use them.

    Attributes:
        now_s: monotonic clock in seconds.
        apply_requested_threads: called between two steps if other threads are requested.
    """

    def __init__(self, clock: Callable[[], float], on_end: Callable[[], object] = bool) -> None:
        self.now_s = clock
        self.worker = WorkThread(QUEUE_LENGTH, self._do_short_work, on_end)
        self.inbox = EngineInbox(self.worker)
        self.outbox = EngineOutbox()
        self.apply_requested_threads: Callable[[], None] = self.inbox.requested_threads.clear

    # ---- requests of the screen

    def is_stopped(self) -> bool:
        """Return whether the running request should end."""
        return self.inbox.is_stopped()

    def has_other_work(self) -> bool:
        """Return whether work of low priority should end."""
        return self.inbox.has_other_work()

    @property
    def state_path(self) -> Path | None:
        """Beginning of the paths of the live conversation's saved states; None if they are not
        saved."""
        return self.inbox.state_path

    # ---- state and events

    @property
    def state(self) -> EngineState:
        """Current state."""
        return self.outbox.state

    @property
    def status(self) -> EngineStatus:
        """Current activity and its progress."""
        return self.outbox.state.status

    @property
    def state_trouble(self) -> str:
        """Reason why the state of the KV cache is not saved; empty if it is."""
        return self.outbox.state.state_trouble

    @state_trouble.setter
    def state_trouble(self, trouble: str) -> None:
        if trouble != self.outbox.state.state_trouble:
            self.update(state_trouble=trouble)

    def emit(self, event: Event) -> None:
        """Report an event to the screen."""
        self.outbox.emit(event)

    def update(self, **changes: Any) -> None:
        """Replace fields of the state."""
        self.outbox.update(**changes)

    def update_status(self, **changes: Any) -> None:
        """Replace fields of the status."""
        self.outbox.update_status(**changes)

    def report_progress(self, **changes: Any) -> None:
        """Replace fields of the status between two steps of the computation, and apply requested
        threads."""
        self._do_short_work()
        self.update_status(**changes)

    def forget_model(self) -> None:
        """Remove everything about the open model from the state."""
        self.apply_requested_threads = self.inbox.requested_threads.clear
        self.inbox.requested_threads.clear()  # those were for this model
        self.inbox.requested_kv_type = ""
        self.outbox.state = EngineState(status=self.status, state_trouble=self.state_trouble)

    @contextmanager
    def running(
        self, work: Stoppable, written: Callable[[], WrittenReply] = nothing_written
    ) -> Iterator[None]:
        """Let the user stop work during the block, and the screen read the reply."""
        with self.outbox.running_work(work, written):
            if self.inbox.stop_requested.is_set():  # Requested just before the work was visible.
                work.cancel()
            yield

    def _do_short_work(self) -> bool:
        if self.inbox.requested_threads:
            self.apply_requested_threads()
        return False

"""Connection of the engine thread to the screen: outbox of events, progress and cancellation."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from app.backend.engine_inbox import EngineInbox
from app.backend.engine_state import EngineState
from app.backend.status import EngineStatus
from app.backend.work_thread import WorkThread
from app.session.events import Event, TextGenerated, ThoughtGenerated
from app.text.record import record


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

    def step(self, **changes: Any) -> None:
        """Replace fields of the status after a step of the computation, and use requested
        threads."""
        self._do_short_work()
        self.update_status(**changes)

    def forget_model(self) -> None:
        """Remove everything about the open model from the state."""
        self.apply_requested_threads = self.inbox.requested_threads.clear
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

"""State and events of the engine thread: the engine thread writes them, the screen's thread reads
them.

Nothing is sent for each token: events wait in a deque until the screen drains it, ten times a
second.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any, Protocol

from app.backend.engine_state import EngineState
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

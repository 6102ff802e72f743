"""The engine thread's side of its connection to the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.backend.engine_inbox import EngineInbox
from app.backend.engine_outbox import EngineOutbox, Stoppable, WrittenReply, nothing_written
from app.backend.engine_state import EngineState
from app.backend.status import EngineStatus
from app.backend.work_thread import WorkThread
from app.session.events import Event

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
        self.inbox.thinking = ""
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

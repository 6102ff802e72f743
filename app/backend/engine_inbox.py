"""Requests to the engine thread: the screen's thread writes them, the engine thread reads them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from app.backend.work_thread import WorkThread
from app.machine.tuning.threads_in_use import ThreadsInUse
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
        self._session: Any = None

    def begin(self) -> bool:
        """Announce a piece before it is queued; return False if another one has not ended."""
        if self.is_pending:
            return False
        self.is_pending = True
        self.is_dropped = False
        return True

    def drop(self) -> None:
        """End the piece, whether it is queued or running."""
        with self._lock:
            self.is_dropped = True
            if self._session is not None:
                self._session.cancel()

    def drop_again(self) -> None:
        """Cancel a dropped piece once more.

        A session forgets a cancel that comes just before it computes.
        """
        if self.is_dropped:
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
        self.is_watched = False
        self.state_path: Path | None = None
        self.flush_s = FLUSH_S

    @property
    def is_closing(self) -> bool:
        """Whether the engine thread should end."""
        return self._worker.is_closing

    def is_stopped(self) -> bool:
        """Return whether the running request should end."""
        return self.stop_requested.is_set() or self.is_closing

    def has_other_work(self) -> bool:
        """Return whether work of low priority should end."""
        return self._worker.has_other_work

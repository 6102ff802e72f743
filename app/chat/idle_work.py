"""Work for the engine's thread that nobody waits for, and how it is dropped the moment somebody asks for anything."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class IdleWork:
    """At most one piece at a time: begun and dropped by the screen's thread, done and ended by the engine's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_pending = False
        self._is_dropped = False
        self._session: Any = None

    @property
    def is_dropped(self) -> bool:
        """Whether the piece should end at once."""
        return self._is_dropped

    def begin(self) -> bool:
        """Announce a piece before it is queued; False while another one is not ended."""
        if self._is_pending:
            return False
        self._is_pending, self._is_dropped = True, False
        return True

    def drop(self) -> None:
        """End the piece, if there is one: in the queue, before its computation or in the middle of it."""
        with self._lock:
            self._is_dropped = True
            if self._session is not None:
                self._session.cancel()

    def insist(self) -> None:
        """Cancel once more what should have ended: a session forgets a cancel that comes just before it computes."""
        if self._is_dropped:
            self.drop()

    @contextmanager
    def computing(self, session: Any) -> Iterator[bool]:
        """Let ``drop`` cancel the session meanwhile, and never after: then it computes what was asked for.

        Yields:
            Whether to compute at all.
        """
        with self._lock:
            self._session = session
        try:
            yield not self._is_dropped
        finally:
            with self._lock:
                self._session = None

    def end(self) -> None:
        """The piece is over."""
        self._is_pending = False

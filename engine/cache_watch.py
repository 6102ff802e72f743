"""What became of a session's cache since somebody last looked: how many positions still hold what they held."""

from __future__ import annotations

import sys
import threading

UNTOUCHED = sys.maxsize


class CacheWatch:
    """Remembers the lowest position that a session was cut to. Any thread may ask.

    Positions are only ever written behind a session's length, so whatever lies below the lowest cut is as it was.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stands = UNTOUCHED

    def cut(self, n: int) -> None:
        """The session tells that positions from n on may be written anew; called before they are."""
        with self._lock:
            self._stands = min(self._stands, n)

    def stands(self) -> int:
        """Below which position nothing was written anew since the last ``take``."""
        with self._lock:
            return self._stands

    def take(self) -> int:
        """Return the same, and count from now on."""
        with self._lock:
            stands, self._stands = self._stands, UNTOUCHED
            return stands

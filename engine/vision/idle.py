"""Release of what was not used for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from engine.machine import host
from engine.weights.modes import RESERVE_BYTES

IDLE_S = 300.0
"""Seconds without use after which memory is released."""
LOOK_S = 10.0
"""Seconds between two looks; if memory is short, the next one releases."""


class IdleWatch:
    """Watch over memory that is in use now and then.

    A thread looks from the first use on until it has released.

    Args:
        release: Releases the memory, in another thread than the one that uses it.
    """

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._last_use_s = 0.0
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def report_use(self) -> None:
        """Note that the memory was used now."""
        with self._lock:
            self._last_use_s = time.monotonic()
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="idle watch", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the watch; nothing is released afterwards. Closing twice is harmless."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            is_short = host.available_memory_bytes() < RESERVE_BYTES
            with self._lock:
                is_idle = time.monotonic() - self._last_use_s >= IDLE_S
                if is_idle or is_short:
                    self._thread = None
                    break
        if not self._closed.is_set():
            self._release()

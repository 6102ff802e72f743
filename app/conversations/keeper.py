"""Writes one conversation's changes in a thread of its own: neither screen nor engine ever waits for a disk.

What cannot be written stays in memory, in order, and is tried again every few seconds and with everything new.
"""

from __future__ import annotations

import threading
import time

from app.conversations.locks import StoreError
from app.conversations.store import Change, Held, touch
from app.program.refusals import log_without_text

RETRY_S = 5.0
SYNC_S = 2.0
"""Longest time that a growing reply stays unsynced; a kill loses none of it, a power cut may."""
_MOST_LAST_TRIES = 2


class Keeper:
    """Changes one conversation until it is closed."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self._condition = threading.Condition()
        self._changes: list[tuple[Change, bool]] = []
        """Not on the disk yet, in order, and whether they are to outlive a power cut."""
        self._n_failed = 0
        """How many there were in the last try, where that failed."""
        self._unsynced_s: float | None = None
        """Since when something is on the disk that a power cut might lose."""
        self._is_leaving = self._is_closing = self._is_over = False
        self._n_last_tries = 0
        self.trouble = ""
        """Why nothing is saved at present; "" while all is well."""
        self._thread = threading.Thread(target=self._run, name="jalopy-keeper", daemon=True)
        self._thread.start()

    @property
    def has_unsaved(self) -> bool:
        """Whether something is in memory only."""
        with self._condition:
            return bool(self._changes)

    def add(self, change: Change, is_durable: bool = True) -> None:
        """Have a change made soon; a durable one with all before it outlives a power cut."""
        with self._condition:
            self._changes.append((change, is_durable))
            self._condition.notify_all()

    def leave(self, patience_s: float) -> bool:
        """End once everything is saved, however often that must be tried; False, and not waited for, if that fails."""
        give_up_s = time.monotonic() + patience_s
        with self._condition:
            self._is_leaving = True
            self._condition.notify_all()
            while not (self._is_over or self.trouble) and (left_s := give_up_s - time.monotonic()) > 0:
                self._condition.wait(left_s)
            if not self._is_over:
                return False
        self._thread.join(patience_s)
        return not self.has_unsaved

    def close(self, patience_s: float) -> bool:
        """Write what waits and end; False if something is still not saved after ``patience_s``."""
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()
        self._thread.join(patience_s)
        return not self.has_unsaved

    def settle(self, patience_s: float, waits_for_room: bool = True) -> bool:
        """Wait until all is saved; False if that takes too long, or fails where nothing ``waits_for_room``."""
        give_up_s = time.monotonic() + patience_s
        with self._condition:
            while self._changes:
                left_s = give_up_s - time.monotonic()
                has_failed = self._n_failed == len(self._changes)
                if left_s <= 0 or self._is_over or (has_failed and not waits_for_room):
                    return False
                self._condition.wait(left_s)
        return True

    # ---- the keeper's thread

    def _run(self) -> None:
        try:
            while self._wait():
                self._save()
        finally:
            with self._condition:
                self._is_over = True
                self._condition.notify_all()
            self.held.close()

    def _wait(self) -> bool:
        """Wait for something to do; False when it is time to end."""
        with self._condition:
            while not self._is_closing:
                if self.trouble:
                    self._condition.wait(RETRY_S)
                    return True
                if self._changes or self._is_leaving:
                    return self._has_work
                left_s = None if self._unsynced_s is None else SYNC_S - (time.monotonic() - self._unsynced_s)
                if left_s is not None and left_s <= 0:
                    return True
                self._condition.wait(left_s)
            return self._has_work and self._n_last_tries < _MOST_LAST_TRIES

    @property
    def _has_work(self) -> bool:
        return bool(self._changes) or self._unsynced_s is not None

    def _save(self) -> None:
        with self._condition:
            taken = list(self._changes)
            self._n_last_tries += self._is_closing
            is_ending = self._is_leaving or self._is_closing
        now_s = time.monotonic()
        is_due = self._unsynced_s is not None and now_s - self._unsynced_s >= SYNC_S
        is_durable = is_ending or is_due or any(is_durable for _, is_durable in taken)
        try:
            self.held.apply([change for change, _ in taken] or [touch], is_durable)
        except Exception as error:
            self.trouble, self._n_failed = _cause_of(error), len(taken)
        else:
            self.trouble, self._n_failed = "", 0
            self._unsynced_s = None if is_durable else self._unsynced_s or now_s
            with self._condition:
                del self._changes[: len(taken)]
        with self._condition:
            self._condition.notify_all()


def _cause_of(error: Exception) -> str:
    """Say why something was not saved; a bug goes to the log and is named by its type."""
    if isinstance(error, StoreError):
        return str(error)
    log_without_text(error)
    return f"internal error: {type(error).__name__}"

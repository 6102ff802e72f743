"""Writes one conversation's records in a thread of its own: neither screen nor engine ever waits for a disk.

What cannot be written stays in memory, in order, and is tried again every few seconds and with everything new.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from app.conversations.log_file import LogFile, LogRefusedError
from app.conversations.records import Record, write_record
from app.conversations.summary import Summary, write_summary
from app.program.refusals import log_without_text
from app.text.clean_text import clean_line
from app.text.record import record

RETRY_S = 5.0
SYNC_S = 10.0
"""Longest time that a growing reply stays unsynced; a kill loses none of it, a power cut may."""
_MOST_LAST_TRIES = 2
_CAUSES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be too large",
    errno.EROFS: "the disk is read-only",
}


@record
class _Line:
    content: bytes
    is_durable: bool


class Keeper:
    """Appends to one log until it is closed. ``open_log`` runs in the keeper's thread, again while it raises."""

    def __init__(self, open_log: Callable[[], LogFile], log: LogFile | None = None) -> None:
        self._open_log, self.log = open_log, log
        self._needs_directories = log is None
        self._condition = threading.Condition()
        self._lines: list[_Line] = []
        """Not known to be safe, in order."""
        self._n_written = self._n_failed = 0
        """The first ones that are written and not synced; those that were part of the last try, where that failed."""
        self._unsynced_s = 0.0
        self._is_leaving = self._is_closing = self._is_over = False
        self._n_last_tries = 0
        self.summary: Summary | None = None
        """Row of the list of conversations; written beside the log after each sync."""
        self.trouble = ""
        """Why nothing is saved at present; "" while all is well."""
        self._thread = threading.Thread(target=self._run, name="jalopy-transcript", daemon=True)
        self._thread.start()

    @property
    def has_unsaved(self) -> bool:
        """Whether something is in memory only."""
        with self._condition:
            return len(self._lines) > self._n_written or any(line.is_durable for line in self._lines)

    def add(self, record: Record, is_durable: bool = True) -> bytes:
        """Have a record written soon, and return its line; a durable one with all before it outlives a power cut."""
        line = write_record(record)
        with self._condition:
            self._lines.append(_Line(line, is_durable))
            self._condition.notify_all()
        return line

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
            while self.has_unsaved:
                left_s = give_up_s - time.monotonic()
                has_failed = self._n_failed == len(self._lines)
                if left_s <= 0 or self._is_over or (has_failed and not waits_for_room):
                    return False
                self._condition.wait(left_s)
        return True

    def wait_written(self, patience_s: float) -> bool:
        """Wait until all outlives a kill of this process; False if that takes too long, or cannot be written now."""
        give_up_s = time.monotonic() + patience_s
        with self._condition:
            while len(self._lines) > self._n_written:
                left_s = give_up_s - time.monotonic()
                if left_s <= 0 or self._is_over or self.trouble:
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
            if self.log is not None:
                with suppress(OSError):  # everything in it was synced, or is known not to be
                    self.log.close()

    def _wait(self) -> bool:
        """Wait for something to do; False when it is time to end."""
        with self._condition:
            while not self._is_closing:
                if self.trouble:
                    self._condition.wait(RETRY_S)
                    return True
                if len(self._lines) > self._n_written or (self._is_leaving and self._lines):
                    return True
                if self._is_leaving:
                    return False
                left_s = SYNC_S - (time.monotonic() - self._unsynced_s) if self._lines else None
                if left_s is not None and left_s <= 0:
                    return True
                self._condition.wait(left_s)
            return bool(self._lines) and self._n_last_tries < _MOST_LAST_TRIES

    def _save(self) -> None:
        with self._condition:
            taken = list(self._lines)
            self._n_last_tries += self._is_closing
            is_ending = self._is_leaving or self._is_closing
        try:
            self._write(taken, is_ending)
        except Exception as error:
            # Nothing since the last sync can be relied on: all of it is written again.
            self._n_written = 0
            if self.log is not None:
                self.log.forget_unsynced()
            self.trouble = cause_of(error)
            self._n_failed = len(taken)
        else:
            self.trouble, self._n_failed = "", 0
        with self._condition:
            self._condition.notify_all()

    def _write(self, taken: Sequence[_Line], is_ending: bool) -> None:
        if self.log is None:
            self.log = self._open_log()
        if len(taken) > self._n_written:
            self.log.append([line.content for line in taken[self._n_written :]])
            with self._condition:
                if not self._n_written:
                    self._unsynced_s = time.monotonic()
                self._n_written = len(taken)
                self._condition.notify_all()
        is_due = time.monotonic() - self._unsynced_s >= SYNC_S
        if is_ending or is_due or any(line.is_durable for line in taken):
            if self._needs_directories:
                self.log.sync_directories()
                self._needs_directories = False
            self.log.sync()  # last: what was written counts as safe from here on
            with self._condition:
                del self._lines[: len(taken)]
                self._n_written = 0
            if self.summary is not None:
                write_summary(self.log.path.parent, self.summary, self.log.size)


def cause_of(error: Exception) -> str:
    """Say why something was not saved; a bug goes to the log and is named by its type."""
    if isinstance(error, LogRefusedError):
        return str(error)
    if isinstance(error, OSError):
        return _CAUSES.get(error.errno or 0) or clean_line(error.strerror or os.strerror(errno.EIO), 80)
    log_without_text(error)
    return f"internal error: {type(error).__name__}"

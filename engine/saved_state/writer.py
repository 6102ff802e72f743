"""Saves a session's keys and values while it runs: a thread copies finished positions and appends them to a file."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.cache.layer_cache import POSITIONS
from engine.errors import EngineError, shown
from engine.machine.memory import shown_bytes
from engine.saved_state.appending import RESERVE_BYTES, NoRoomError, StateFile, refuse_newer
from engine.saved_state.layout import RECORD_POSITIONS, Header
from engine.saved_state.origin import Origin, forget_origin
from engine.saved_state.record import file_bytes, head_bytes, next_record

if TYPE_CHECKING:
    from engine.session import Session

FEWEST_NEW = 16
"""Least number of new tokens written as one record while the session grows."""
QUIET_S = 3.0
"""Seconds without a note after which the rest is written."""
SYNC_S = 5.0
"""Least seconds between two flushes to the device (fsync), except for ``flush``."""
RETRY_S = 5.0
"""Seconds that notes wait after a failure; ``flush`` does not wait."""
SLACK_BYTES = 8 << 20
DEAD_SHARE = 0.5
"""A file is rewritten once its dead records exceed ``SLACK_BYTES`` plus this share of the live ones."""
DEAD_STATES = 6
"""Recurrent states that may be dead in it beside that: each turn leaves one or two."""


class StateWriter:
    """Keeps a file up to date with a session, from a thread of its own.

    Decode writes behind the session's length, so positions below it can be copied meanwhile. A watch on the session
    reports cuts; it is checked after every copy, before the copy counts. Close the writer before using the session for
    another conversation.

    Args:
        session: must stay open until after ``close``.
        path: of the file, in a private directory. No other process may write it meanwhile: hold a lock.
        quota_bytes: limit on the file's size; None for no limit.

    Attributes:
        quota_bytes: the limit; may be changed at any time.

    Raises:
        EngineError: the model file was changed since it was opened.
    """

    def __init__(self, session: Session, path: Path, quota_bytes: int | None = None) -> None:
        self.quota_bytes = quota_bytes
        self._session = session
        self._path = path
        self._memory = session.memory  # keeps the memory alive even if the session is closed
        self._header = Header.of(session, bytes(16))
        self._watch = session.cached.watch()
        self._file: StateFile | None = None
        self._saved = self._ended = 0
        """Tokens in the file, and those up to the last recurrent state in it."""
        self._buffer = np.empty(0, np.uint8)
        self._margin_bytes = self._memory.copied_bytes(0, POSITIONS, is_end=True) + head_bytes(
            RECORD_POSITIONS
        )  # a tile that is written again, and the end's state
        self._problem: str | None = None
        self._changed = threading.Condition()
        self._noted_s: float | None = None
        self._flushes = self._flushes_done = 0
        self._is_closing = self._is_abandoned = False
        self._retry_s = self._synced_s = 0.0
        self._resume()
        self._thread = threading.Thread(target=self._run, name="state-writer", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why the last attempt did not save everything, one line; None if it did."""
        return self._problem

    @property
    def saved_tokens(self) -> int:
        """Number of tokens in the published file; a power cut may lose those not flushed yet."""
        file = self._file
        return min(self._saved, self._watch.stands()) if file is not None and file.is_published else 0

    @property
    def file_bytes(self) -> int:
        """Size of the file in bytes, dead records included; 0 before it exists."""
        file = self._file
        return file.end if file is not None else 0

    def note(self) -> None:
        """Report that the session grew or was cut; takes microseconds."""
        with self._changed:
            if self._noted_s is None or self._n_new() >= FEWEST_NEW:
                self._changed.notify_all()
            self._noted_s = time.monotonic()

    def flush(self, timeout_s: float) -> bool:
        """Save all present tokens and wait until they are on the device; False on failure or after ``timeout_s``."""
        with self._changed:
            self._flushes += 1
            wanted = self._flushes
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._flushes_done >= wanted or self._is_closing, timeout_s)
            return self._flushes_done >= wanted and self._problem is None

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread; tokens not flushed may be missing in the file. Closing twice is harmless."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():  # it keeps its watch, or it would save the next conversation's tokens as this one's
            self._is_abandoned = True
            return
        self._session.cached.unwatch(self._watch)
        file, self._file = self._file, None
        if file is not None and file.is_published and not self._is_abandoned:
            length, watch = min(self._saved, self._watch.take()), self._session.cached.watch()
            Origin(self._path, self._header, file.end, file.digest, length, watch).remember(self._session)

    def _resume(self) -> None:
        """Continue the file that a restore or an earlier writer left, up to where the session was cut since."""
        origin = forget_origin(self._session)
        if origin is not None and origin.path == self._path:
            self._file = StateFile.resume(origin)
            if self._file is not None:
                self._header, self._saved = origin.header, min(origin.length, origin.watch.take())

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            self._attempt(*job)
        if self._file is not None:
            self._file.close()

    def _next_job(self) -> tuple[int, bool] | None:
        """Sleep until there is something to do.

        Returns:
            (number of flushes it will complete, whether to write an incomplete tile too); None at the end.
        """
        with self._changed:
            while not self._is_closing:
                if self._flushes > self._flushes_done:
                    return self._flushes, True
                now_s, due_s = time.monotonic(), self._due_s()
                if due_s is not None and due_s <= now_s:
                    return self._flushes, self._n_new() < FEWEST_NEW
                self._changed.wait(None if due_s is None else due_s - now_s)
            return None

    def _due_s(self) -> float | None:
        """Time of the next write: at once for ``FEWEST_NEW`` tokens or more, else ``QUIET_S`` after the last note."""
        if self._noted_s is None:
            return None
        return max(self._retry_s, self._noted_s if self._n_new() >= FEWEST_NEW else self._noted_s + QUIET_S)

    def _n_new(self) -> int:
        return self._session.cached.n_settled - min(self._saved, self._watch.stands())

    def _attempt(self, flushes: int, everything: bool) -> None:
        """Save, and store any error in ``problem``: an exception would end the thread and stop all saving."""
        noted_s, is_flush = self._noted_s, flushes > self._flushes_done
        problem = None
        try:
            self._save(everything, is_flush)
        except OSError as error:
            problem = f"the conversation's state is not saved: {shown(error.strerror or str(error))}"
        except EngineError as error:
            problem = f"the conversation's state is not saved: {error}"
        except Exception as error:
            problem = f"the conversation's state is not saved: {type(error).__name__}: {shown(str(error))}"
        if self._file is not None and not self._file.is_published:
            self._let_go()  # frees the space for others, conversations first of all
        with self._changed:
            self._problem = problem
            self._retry_s = time.monotonic() + RETRY_S if problem else 0.0
            if (everything or problem) and noted_s == self._noted_s:
                self._noted_s = None
            self._flushes_done = max(self._flushes_done, flushes)
            self._changed.notify_all()

    def _save(self, everything: bool, is_flush: bool) -> None:
        """Append missing positions, up to the last full tile or to the end, and flush the file."""
        while not self._is_abandoned and (is_flush or not self._is_closing):
            self._saved = min(self._saved, self._watch.take())
            token_ids = self._session.cached.settled()
            goal = len(token_ids) if everything else len(token_ids) // POSITIONS * POSITIONS
            file = self._file_for(goal, may_rewrite=not is_flush)
            if file is None or goal <= self._saved:
                break
            self._ended = min(self._ended, self._saved)
            ends = is_flush or (everything and goal - self._ended >= FEWEST_NEW)
            self._append_next(file, token_ids, goal, ends)
        else:
            return
        self._finish(everything)

    def _append_next(self, file: StateFile, token_ids: list[int], goal: int, ends: bool) -> None:
        """Append a record.

        Args:
            ends: one that ends at the goal shall carry the state there, which may be large.
        """
        first, last = next_record(self._memory, self._saved, goal)
        is_end = ends and last == goal
        n_bytes = self._memory.copied_bytes(first, last, is_end)
        if len(self._buffer) < n_bytes:
            self._buffer = np.empty(n_bytes, np.uint8)
        payload = self._buffer.data[: self._memory.copy_out(first, last, self._buffer, is_end)]
        if self._watch.stands() >= last:  # else positions were cut, and perhaps rewritten, during the copy
            file.append(first, token_ids[first:last], payload, zlib.crc32(payload))
            self._saved = last
            if self._memory.has_state((first, last, len(payload))):
                self._ended = last

    def _finish(self, everything: bool) -> None:
        file = self._file
        if file is None or not file.length:
            return
        try:
            if not file.is_published:
                file.publish()
            elif everything or time.monotonic() >= self._synced_s + SYNC_S:
                file.sync()
        except OSError:
            self._let_go()  # its content is unknown now; the file in its place is protected by its checksums
            raise
        self._synced_s = time.monotonic()

    def _file_for(self, goal: int, may_rewrite: bool) -> StateFile | None:
        """Return the file to append to; a new one if none exists or too much of it is dead.

        Raises:
            OSError: not enough space.
        """
        needed_bytes = file_bytes(self._memory, goal) + self._margin_bytes
        if self.quota_bytes is not None and needed_bytes > self.quota_bytes:
            raise self._over_quota(needed_bytes)
        if self._file is not None and not self._is_worth_keeping(self._file, goal, may_rewrite):
            self._let_go()
        if self._file is None and goal:
            refuse_newer(self._path)
            self._header, self._saved = replace(self._header, file_id=secrets.token_bytes(16)), 0
            self._file = StateFile.create(self._path, self._header)
        return self._file

    def _is_worth_keeping(self, file: StateFile, goal: int, may_rewrite: bool) -> bool:
        if not file.is_in_place():
            return False
        live_bytes = file_bytes(self._memory, self._saved)
        to_come_bytes = file_bytes(self._memory, goal) - live_bytes + self._margin_bytes
        if self.quota_bytes is not None and file.end + to_come_bytes > self.quota_bytes:
            if file.end < live_bytes + SLACK_BYTES // 8:
                raise self._over_quota(file.end + to_come_bytes)
            return False
        slack_bytes = SLACK_BYTES + DEAD_STATES * self._memory.state_bytes
        is_mostly_dead = file.end > (1 + DEAD_SHARE) * live_bytes + slack_bytes
        has_room = shutil.disk_usage(self._path.parent).free > live_bytes + 2 * RESERVE_BYTES
        return not (may_rewrite and is_mostly_dead and file.is_published and has_room)

    def _over_quota(self, needed_bytes: int) -> NoRoomError:
        return NoRoomError(
            f"its {shown_bytes(needed_bytes)} are more than the {shown_bytes(self.quota_bytes or 0)} allowed"
        )

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._saved = None, 0

"""Saving of a session's keys and values while it runs: a thread copies finished positions into
segments."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.cache.layer_cache import POSITIONS
from engine.errors import EngineError, printable
from engine.machine.files import make_private, sync_directory
from engine.machine.memory import shown_bytes
from engine.saved_state.segments import (
    SEGMENT_POSITIONS,
    PrefixKeys,
    Segment,
    mark_used,
    next_segment,
    saved_bytes,
    write_segment,
)
from engine.saved_state.state_file import is_own_file

if TYPE_CHECKING:
    from engine.session import Session

MIN_NEW = 16
"""Minimum of new tokens that are written as one segment while the session grows."""
QUIET_S = 3.0
"""Seconds without ``notify`` after which the remaining tokens are written."""
RETRY_S = 5.0
"""Seconds until the next attempt after a failure. ``flush`` does not wait."""
RESERVE_BYTES = 64 << 20
"""Free space in bytes that saved states leave on the device, so that conversations can still be
saved."""
MAX_ENDS = 6
"""Limit on the saved recurrent states at earlier ends of the conversation, in addition to its
turns."""


class NoSpaceError(OSError):
    """Writing more would exceed the quota or leave less than ``RESERVE_BYTES`` free on the
    device."""


@dataclass
class _FlushCounts:
    """Numbers of requested and of completed flushes."""

    requested: int = 0
    done: int = 0


class StateWriter:
    """Writes the tokens of a session to a directory of segments, in its own thread.

    Decode writes after the session's length, so positions below it can be copied meanwhile. A watch
    on the session records cuts; it is checked after every copy. Existing segments are not written
    again. Close the writer before using the session for another conversation.

    Args:
        session: session to save; it must stay open until after ``close``.
        directory: private directory; other programs may use it at the same time.
        quota_bytes: limit on the size of the session's segments; None for no limit.
        on_segment: called in the writer's thread with the name of each segment before the session
            relies on it.

    Attributes:
        quota_bytes: the limit, which may be changed at any time.
        written_bytes: size of all segments that were written.

    Raises:
        EngineError: the model file was changed since it was opened.
    """

    def __init__(
        self,
        session: Session,
        directory: Path,
        quota_bytes: int | None = None,
        on_segment: Callable[[str], object] = str,
    ) -> None:
        self.quota_bytes = quota_bytes
        self.written_bytes = 0
        self._session = session
        self._directory = directory
        self._on_segment = on_segment
        self._memory = session.memory  # keeps the memory alive even if the session is closed
        self._keys = PrefixKeys(session)
        self._watch = session.cached.watch()
        self._n_saved = 0
        self._state_end = 0
        """Position of the last saved recurrent state."""
        self._tails: list[Segment] | None = None
        """Segments of this conversation that end between two multiples of 64; None before they are
        listed."""
        self._buffer = np.empty(0, np.uint8)
        self._problem: str | None = None
        self._changed = threading.Condition()
        self._notified_s: float | None = None
        self._flushes = _FlushCounts()
        self._is_closing = False
        self._is_abandoned = False
        self._retry_s = 0.0
        self._thread = threading.Thread(target=self._run, name="state-writer", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Reason why the last attempt did not save everything, one line; None if it did."""
        return self._problem

    @property
    def saved_tokens(self) -> int:
        """Number of saved tokens of the session."""
        return min(self._n_saved, self._watch.lowest_cut())

    def notify(self) -> None:
        """Tell the writer that the session has changed; takes microseconds."""
        with self._changed:
            if self._notified_s is None or self._n_new() >= MIN_NEW:
                self._changed.notify_all()
            self._notified_s = time.monotonic()

    def flush(self, timeout_s: float) -> bool:
        """Save all present tokens and wait until they are on the device; returns False on failure
        or after ``timeout_s``."""
        with self._changed:
            self._flushes.requested += 1
            number = self._flushes.requested
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._flushes.done >= number or self._is_closing, timeout_s
            )
            return self._flushes.done >= number and self._problem is None

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread; tokens that were not flushed may be lost. Closing twice is harmless."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            # Without its watch the thread would save tokens of the next conversation as this one's.
            self._is_abandoned = True
            return
        self._session.cached.unwatch(self._watch)

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            self._attempt(*job)

    def _next_job(self) -> tuple[int, bool] | None:
        """Sleep until there is something to save.

        Returns:
            (number of flushes that the job completes, whether to write an incomplete tile, too);
            None if the writer is closed.
        """
        with self._changed:
            while not self._is_closing:
                if self._flushes.requested > self._flushes.done:
                    return self._flushes.requested, True
                now_s = time.monotonic()
                due_s = self._due_s()
                if due_s is not None and due_s <= now_s:
                    return self._flushes.requested, self._n_new() < MIN_NEW
                self._changed.wait(None if due_s is None else due_s - now_s)
            return None

    def _due_s(self) -> float | None:
        """Return the time of the next write: at once for ``MIN_NEW`` tokens or more, else
        ``QUIET_S`` after the last ``notify``; None if there is nothing to write."""
        if self._notified_s is None:
            return None
        due_s = self._notified_s
        if self._n_new() < MIN_NEW:
            due_s += QUIET_S
        return max(self._retry_s, due_s)

    def _n_new(self) -> int:
        return self._session.cached.n_permanent - min(self._n_saved, self._watch.lowest_cut())

    def _attempt(self, flushes: int, is_everything: bool) -> None:
        """Save, and store any error in ``problem``. An exception would end the thread."""
        notified_s = self._notified_s
        is_flush = flushes > self._flushes.done
        problem = None
        try:
            self._save(is_everything, is_flush)
        except OSError as error:
            problem = (
                f"the conversation's state is not saved: {printable(error.strerror or str(error))}"
            )
        except EngineError as error:
            problem = f"the conversation's state is not saved: {error}"
        except Exception as error:
            problem = (
                f"the conversation's state is not saved: {type(error).__name__}: "
                f"{printable(str(error))}"
            )
        with self._changed:
            self._problem = problem
            if problem:
                self._retry_s = time.monotonic() + RETRY_S
            else:
                self._retry_s = 0.0
            if (is_everything or problem) and notified_s == self._notified_s:
                self._notified_s = None
            self._flushes.done = max(self._flushes.done, flushes)
            self._changed.notify_all()

    def _save(self, is_everything: bool, is_flush: bool) -> None:
        """Write missing positions, up to the last full tile or up to the end."""
        make_private(self._directory)
        before_bytes = self.written_bytes
        while not self._is_abandoned and (is_flush or not self._is_closing):
            lowest_cut = self._watch.take_lowest_cut()
            self._n_saved = min(self._n_saved, lowest_cut)
            self._state_end = min(self._state_end, lowest_cut)
            self._keys.cut(self._n_saved)
            if self._tails is not None:
                self._tails = [tail for tail in self._tails if tail.last <= lowest_cut]
            token_ids = self._session.cached.permanent_ids()
            if is_everything:
                goal = len(token_ids)
            else:
                goal = len(token_ids) // POSITIONS * POSITIONS
            if goal <= self._n_saved:
                break
            self._refuse_too_much(goal)
            self._save_next(
                token_ids, goal, is_flush or (is_everything and goal - self._state_end >= MIN_NEW)
            )
        if is_everything and self.written_bytes > before_bytes:
            sync_directory(self._directory)

    def _save_next(self, token_ids: list[int], goal: int, ends: bool) -> None:
        """Write the next segment if it is missing.

        Args:
            ends: include the recurrent state, which may be large, in a segment that ends at the
                goal.
        """
        first, last = next_segment(self._memory, self._n_saved, goal)
        segment = Segment(self._keys.at(token_ids, first), last, self._keys.at(token_ids, last))
        is_end = ends and last == goal
        max_bytes = self._memory.copied_bytes(first, last, is_end)
        self._on_segment(segment.name)
        stored_bytes = self._stored_bytes(segment)
        if stored_bytes:
            mark_used(self._directory / segment.name)
        if stored_bytes < max_bytes:
            if len(self._buffer) < max_bytes:
                self._buffer = np.empty(max_bytes, np.uint8)
            payload = self._buffer.data[: self._memory.copy_out(first, last, self._buffer, is_end)]
            if self._watch.lowest_cut() < last:  # perhaps rewritten during the copy
                return
            if stored_bytes < len(payload):
                self._write(segment, token_ids[first:last], payload)
                stored_bytes = len(payload)
        self._n_saved = last
        if self._memory.has_state((first, last, stored_bytes)):
            self._state_end = last
        # A smaller segment lacks the sliding layers, which a shorter segment may have.
        if stored_bytes >= max_bytes:
            self._drop_covered(segment, token_ids)

    def _stored_bytes(self, segment: Segment) -> int:
        """Return the size of the keys and values of an existing segment; 0 if there is none."""
        path = self._directory / segment.name
        try:
            status = path.lstat()
            n_bytes = status.st_size - segment.head_bytes
            if not is_own_file(status) or not self._memory.is_copy(
                segment.first, segment.last, n_bytes
            ):
                return 0
        except OSError:
            return 0
        return n_bytes

    def _write(self, segment: Segment, token_ids: list[int], payload: memoryview) -> None:
        n_bytes = segment.head_bytes + len(payload)
        if shutil.disk_usage(self._directory).free < n_bytes + RESERVE_BYTES:
            raise NoSpaceError("the disk is nearly full")
        write_segment(self._directory, segment, token_ids, payload)
        self.written_bytes += n_bytes

    def _drop_covered(self, segment: Segment, token_ids: list[int]) -> None:
        """Delete segments that end within a new one, unless recurrent layers can continue there."""
        if self._tails is None:
            self._tails = self._earlier_tails(token_ids)
        tails = self._tails
        ends = []
        for tail in [tail for tail in tails if tail.last < segment.last]:
            is_turn = self._memory.segment_end(tail.last - 1, tail.last + 1) == tail.last
            if is_turn:
                continue
            if self._memory.has_state((tail.first, tail.last, self._stored_bytes(tail))):
                ends.append(tail)
            elif tail.parent == segment.parent:
                self._drop(tail)
                tails.remove(tail)
        for tail in ends[:-MAX_ENDS]:
            self._drop(tail)
            tails.remove(tail)
        if segment.last % SEGMENT_POSITIONS and segment not in tails:
            tails.append(segment)

    def _earlier_tails(self, token_ids: list[int]) -> list[Segment]:
        """Return the segments that an earlier writer left at ends of the same conversation."""
        segments = filter(None, map(Segment.of_name, os.listdir(self._directory)))
        tails = [
            segment
            for segment in segments
            if segment.last % SEGMENT_POSITIONS and segment.last <= len(token_ids)
        ]
        return sorted(
            (segment for segment in tails if self._keys.at(token_ids, segment.last) == segment.key),
            key=lambda segment: segment.last,
        )

    def _drop(self, segment: Segment) -> None:
        with suppress(OSError):
            (self._directory / segment.name).unlink()

    def _refuse_too_much(self, goal: int) -> None:
        needed_bytes = saved_bytes(self._memory, goal)
        if self.quota_bytes is not None and needed_bytes > self.quota_bytes:
            needed = shown_bytes(needed_bytes)
            limit = shown_bytes(self.quota_bytes)
            raise NoSpaceError(f"its {needed} are more than the {limit} allowed")

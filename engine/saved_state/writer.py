"""Saves a session's keys and values while it runs: a thread copies finished positions into
segments."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.cache.layer_cache import POSITIONS
from engine.errors import EngineError, shown
from engine.machine.directories import make_private, sync_directory
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

FEWEST_NEW = 16
"""Least number of new tokens written as one segment while the session grows."""
QUIET_S = 3.0
"""Seconds without a note after which the rest is written."""
RETRY_S = 5.0
"""Seconds that notes wait after a failure; ``flush`` does not wait."""
RESERVE_BYTES = 64 << 20
"""Free space in bytes that saved states leave on the device, so that conversations can still be
saved."""
MOST_ENDS = 6
"""Recurrent states that are kept of places where the conversation ended for a while, next to its
turns."""


class NoSpaceError(OSError):
    """Writing more would exceed the quota or leave less than ``RESERVE_BYTES`` free on the
    device."""


class StateWriter:
    """Keeps a directory of segments up to date with a session, from a thread of its own.

    Decode writes after the session's length, so positions below it can be copied meanwhile. A watch
    on the session reports cuts; it is checked after every copy, before the copy counts. What is
    there already is not written again. Close the writer before using the session for another
    conversation.

    Args:
        session: must stay open until after ``close``.
        place: the directory, private; other programs may use it at the same time.
        quota_bytes: limit on what the session takes; None for no limit.
        on_segment: called in the thread with the name of each segment before the session relies on
            it.

    Attributes:
        quota_bytes: the limit; may be changed at any time.
        written_bytes: size of all segments that were written.

    Raises:
        EngineError: the model file was changed since it was opened.
    """

    def __init__(
        self,
        session: Session,
        place: Path,
        quota_bytes: int | None = None,
        on_segment: Callable[[str], object] = str,
    ) -> None:
        self.quota_bytes = quota_bytes
        self.written_bytes = 0
        self._session = session
        self._place = place
        self._on_segment = on_segment
        self._memory = session.memory  # keeps the memory alive even if the session is closed
        self._keys = PrefixKeys(session)
        self._watch = session.cached.watch()
        self._saved = self._ended = 0
        """Tokens that are saved, and those up to the last recurrent state that is."""
        self._tails: list[Segment] = []
        """Segments of the present conversation that end between two multiples of 64."""
        self._has_looked = False
        self._buffer = np.empty(0, np.uint8)
        self._problem: str | None = None
        self._changed = threading.Condition()
        self._noted_s: float | None = None
        self._flushes = self._flushes_done = 0
        self._is_closing = self._is_abandoned = False
        self._retry_s = 0.0
        self._thread = threading.Thread(target=self._run, name="state-writer", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why the last attempt did not save everything, one line; None if it did."""
        return self._problem

    @property
    def saved_tokens(self) -> int:
        """Number of the session's tokens that are saved."""
        return min(self._saved, self._watch.lowest_cut())

    def note(self) -> None:
        """Report that the session grew or was cut; takes microseconds."""
        with self._changed:
            if self._noted_s is None or self._n_new() >= FEWEST_NEW:
                self._changed.notify_all()
            self._noted_s = time.monotonic()

    def flush(self, timeout_s: float) -> bool:
        """Save all present tokens and wait until they are on the device; False on failure or after
        ``timeout_s``."""
        with self._changed:
            self._flushes += 1
            wanted = self._flushes
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._flushes_done >= wanted or self._is_closing, timeout_s
            )
            return self._flushes_done >= wanted and self._problem is None

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread; tokens not flushed may not be saved. Closing twice is harmless."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if (
            self._thread.is_alive()
        ):  # it keeps its watch, or it would save the next conversation's tokens as this one's
            self._is_abandoned = True
            return
        self._session.cached.unwatch(self._watch)

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            self._attempt(*job)

    def _next_job(self) -> tuple[int, bool] | None:
        """Sleep until there is something to do.

        Returns:
            (number of flushes it will complete, whether to write an incomplete tile too); None at
            the end.
        """
        with self._changed:
            while not self._is_closing:
                if self._flushes > self._flushes_done:
                    return self._flushes, True
                now_s = time.monotonic()
                due_s = self._due_s()
                if due_s is not None and due_s <= now_s:
                    return self._flushes, self._n_new() < FEWEST_NEW
                self._changed.wait(None if due_s is None else due_s - now_s)
            return None

    def _due_s(self) -> float | None:
        """Time of the next write: at once for ``FEWEST_NEW`` tokens or more, else ``QUIET_S`` after
        the last note."""
        if self._noted_s is None:
            return None
        return max(
            self._retry_s, self._noted_s if self._n_new() >= FEWEST_NEW else self._noted_s + QUIET_S
        )

    def _n_new(self) -> int:
        return self._session.cached.n_permanent - min(self._saved, self._watch.lowest_cut())

    def _attempt(self, flushes: int, everything: bool) -> None:
        """Save, and store any error in ``problem``: an exception would end the thread and stop all
        saving."""
        noted_s = self._noted_s
        is_flush = flushes > self._flushes_done
        problem = None
        try:
            self._save(everything, is_flush)
        except OSError as error:
            problem = (
                f"the conversation's state is not saved: {shown(error.strerror or str(error))}"
            )
        except EngineError as error:
            problem = f"the conversation's state is not saved: {error}"
        except Exception as error:
            problem = (
                f"the conversation's state is not saved: {type(error).__name__}: "
                f"{shown(str(error))}"
            )
        with self._changed:
            self._problem = problem
            if problem:
                self._retry_s = time.monotonic() + RETRY_S
            else:
                self._retry_s = 0.0
            if (everything or problem) and noted_s == self._noted_s:
                self._noted_s = None
            self._flushes_done = max(self._flushes_done, flushes)
            self._changed.notify_all()

    def _save(self, everything: bool, is_flush: bool) -> None:
        """Write missing positions, up to the last full tile or to the end."""
        make_private(self._place)
        before_bytes = self.written_bytes
        while not self._is_abandoned and (is_flush or not self._is_closing):
            stands = self._watch.take_lowest_cut()
            self._saved = min(self._saved, stands)
            self._ended = min(self._ended, stands)
            self._keys.cut(self._saved)
            self._tails = [tail for tail in self._tails if tail.last <= stands]
            token_ids = self._session.cached.permanent_ids()
            if everything:
                goal = len(token_ids)
            else:
                goal = len(token_ids) // POSITIONS * POSITIONS
            if goal <= self._saved:
                break
            self._refuse_too_much(goal)
            self._save_next(
                token_ids, goal, is_flush or (everything and goal - self._ended >= FEWEST_NEW)
            )
        if everything and self.written_bytes > before_bytes:
            sync_directory(self._place)

    def _save_next(self, token_ids: list[int], goal: int, ends: bool) -> None:
        """Have one more segment.

        Args:
            ends: one that ends at the goal shall carry the state there, which may be large.
        """
        first, last = next_segment(self._memory, self._saved, goal)
        segment = Segment(self._keys.at(token_ids, first), last, self._keys.at(token_ids, last))
        is_end = ends and last == goal
        most_bytes = self._memory.copied_bytes(first, last, is_end)
        self._on_segment(segment.name)
        kept_bytes = self._kept_bytes(segment)
        if kept_bytes:
            mark_used(self._place / segment.name)
        if kept_bytes < most_bytes:
            if len(self._buffer) < most_bytes:
                self._buffer = np.empty(most_bytes, np.uint8)
            payload = self._buffer.data[: self._memory.copy_out(first, last, self._buffer, is_end)]
            if (
                self._watch.lowest_cut() < last
            ):  # positions were cut, and perhaps rewritten, during the copy
                return
            if kept_bytes < len(payload):
                self._write(segment, token_ids[first:last], payload)
                kept_bytes = len(payload)
        self._saved = last
        if self._memory.has_state((first, last, kept_bytes)):
            self._ended = last
        if (
            kept_bytes >= most_bytes
        ):  # else layers with a window are missing, which a shorter one may have
            self._drop_needless(segment, token_ids)

    def _kept_bytes(self, segment: Segment) -> int:
        """Return the size of the keys and values of a segment that is there; 0 if none is."""
        path = self._place / segment.name
        try:
            found = path.lstat()
            n_bytes = found.st_size - segment.head_bytes
            if not is_own_file(found) or not self._memory.is_copy(
                segment.first, segment.last, n_bytes
            ):
                return 0
        except OSError:
            return 0
        return n_bytes

    def _write(self, segment: Segment, token_ids: list[int], payload: memoryview) -> None:
        n_bytes = segment.head_bytes + len(payload)
        if shutil.disk_usage(self._place).free < n_bytes + RESERVE_BYTES:
            raise NoSpaceError("the disk is nearly full")
        write_segment(self._place, segment, token_ids, payload)
        self.written_bytes += n_bytes

    def _drop_needless(self, new: Segment, token_ids: list[int]) -> None:
        """Delete segments that end within the new one, unless recurrent layers may go on from
        there."""
        if not self._has_looked:
            self._has_looked = True
            self._tails = self._tails_left(token_ids)
        ends = []
        for tail in [one for one in self._tails if one.last < new.last]:
            if (
                self._memory.segment_end(tail.last - 1, tail.last + 1) != tail.last
            ):  # the conversation does not turn there
                if self._memory.has_state((tail.first, tail.last, self._kept_bytes(tail))):
                    ends.append(tail)
                elif tail.parent == new.parent:
                    self._drop(tail)
        for tail in ends[:-MOST_ENDS]:
            self._drop(tail)
        if new.last % SEGMENT_POSITIONS and new not in self._tails:
            self._tails.append(new)

    def _tails_left(self, token_ids: list[int]) -> list[Segment]:
        """Return what an earlier writer left of the same tokens."""
        named = filter(None, map(Segment.of_name, os.listdir(self._place)))
        tails = [
            one for one in named if one.last % SEGMENT_POSITIONS and one.last <= len(token_ids)
        ]
        return sorted(
            (one for one in tails if self._keys.at(token_ids, one.last) == one.key),
            key=lambda one: one.last,
        )

    def _drop(self, segment: Segment) -> None:
        self._tails.remove(segment)
        with suppress(OSError):
            (self._place / segment.name).unlink()

    def _refuse_too_much(self, goal: int) -> None:
        needed_bytes = saved_bytes(self._memory, goal)
        if self.quota_bytes is not None and needed_bytes > self.quota_bytes:
            needed = shown_bytes(needed_bytes)
            most = shown_bytes(self.quota_bytes)
            raise NoSpaceError(f"its {needed} are more than the {most} allowed")

"""Output of commands while a model works: the reply on stdout, a progress line on stderr."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from app.backend.status import Activity, EngineStatus
from app.program.refusals import Refusal, say
from app.session.events import Event, ModelFailed, ModelLoaded, PieceGenerated
from app.session.headless import EndOfTurn, HeadlessChat
from app.text.clean_text import ScreenCleaner, clean_line
from app.text.figures import size, whole_seconds

if TYPE_CHECKING:
    from app.documents.read import ReadingProgress

_MIN_INTERVAL_S = 0.1
_WIDTH = 76
_FIRST_REPORT_S = 1.0
_REPORT_INTERVAL_S = 15.0
"""Seconds between progress lines that go to a pipe or a file."""
_LONG_S = 2.0


class ProgressLine:
    """Progress line on stderr, replaced in place on a terminal; rare messages elsewhere.

    Attributes:
        is_hidden: whether nothing is shown, because the user types.
    """

    def __init__(self) -> None:
        self.is_hidden = False
        self._stream = sys.stderr
        self._is_shown = False
        self._is_live = (
            self._stream is not None
            and self._stream.isatty()
            and os.environ.get("TERM", "dumb") != "dumb"
        )
        self._last_s = 0.0
        self._compiling_since_s: float | None = None
        self._next_report_s = 0.0

    def show_opening(self, progress: Any) -> None:
        """Show a step of opening a model."""
        if progress.stage == "compile":
            activity = Activity.COMPILING
        else:
            activity = Activity.LOADING
        self.show_status(EngineStatus(activity, progress.name, progress.done, progress.total))

    def show_status(self, status: EngineStatus) -> None:
        """Show what the engine thread does, if it compiles, loads or reads."""
        if status.activity is Activity.COMPILING:
            self.show(
                f"first-time setup for this CPU: {status.done} of {status.total} {status.step}"
            )
            self._say_compiling(status.total)
        elif status.activity is Activity.LOADING:
            self.show(f"loading {status.step}: {size(status.done)} of {size(status.total)}")
        elif status.activity is Activity.READING and status.meter is not None:
            done = status.done
            time_left = ""
            elapsed_s = status.meter.prefill_s
            if done and elapsed_s > 0:
                time_left = (
                    f", about {whole_seconds(elapsed_s * (status.total - done) / done)} left"
                )
            self.show(f"reading {done} of {status.total} tokens{time_left}")

    def follow_documents(self, progress: ReadingProgress) -> None:
        """Show how much of the documents is read.

        In a pipe or a file, print a line after a second and then every 15 seconds.
        """
        if self._is_live:
            self.show(progress.line)
            return
        now_s = time.monotonic()
        if not self._next_report_s:
            self._next_report_s = now_s + _FIRST_REPORT_S
        elif now_s >= self._next_report_s:
            self._next_report_s = now_s + _REPORT_INTERVAL_S
            say(f"jalopy: {progress.line}")

    def _say_compiling(self, total: int) -> None:
        """Print once to a pipe or a file that compiling takes long."""
        now_s = time.monotonic()
        if self._compiling_since_s is None:
            self._compiling_since_s = now_s
        elif not self._is_live and now_s - self._compiling_since_s > _LONG_S:
            self._compiling_since_s = math.inf
            say(f"jalopy: first-time setup for this CPU: {total} parts; this may take minutes")

    def show(self, text: str) -> None:
        """Replace the line, at most ten times a second."""
        now_s = time.monotonic()
        if self.is_hidden or not self._is_live or now_s - self._last_s < _MIN_INTERVAL_S:
            return
        self._last_s = now_s
        self._write(f"\r\x1b[K{clean_line(text, limit=_WIDTH)}")
        self._is_shown = True

    def clear(self) -> None:
        """Remove the line."""
        if self._is_shown:
            self._write("\r\x1b[K")
            self._is_shown = False

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._is_live = False


class ReplyOutput:
    """A reply on stdout, written piece by piece and flushed at once."""

    def __init__(self) -> None:
        self._stream = sys.stdout
        self._cleaner = ScreenCleaner() if self._stream.isatty() else None
        self._last = "\n"

    def write(self, piece: str) -> None:
        """Write the next piece. Raises OSError: stdout cannot be written."""
        self._put(self._cleaner.push(piece) if self._cleaner else piece)

    def end(self) -> None:
        """Write the buffered text, and a newline unless the reply ended with one."""
        if self._cleaner:
            self._put(self._cleaner.flush())
        if self._last != "\n":
            self._put("\n")

    def _put(self, text: str) -> None:
        if text:
            self._last = text[-1]
            self._stream.write(text)
            self._stream.flush()


def follow_opening(
    headless: HeadlessChat,
    events: Iterable[Event],
    progress: ProgressLine,
    name: str,
    handle: Callable[[Event], object] = lambda event: None,
) -> ModelLoaded:
    """Wait until a model is open and return its description.

    Args:
        name: program or command that an error line begins with.
        handle: called with every event but a failure.

    Raises:
        EngineError: the model cannot be opened.
        Refusal: the model cannot be opened, and there is only a reason.
    """
    for event in events:
        if isinstance(event, ModelFailed):
            progress.clear()
            raise event.error or Refusal(f"{name}: {event.reason}")
        handle(event)
    progress.clear()
    assert headless.chat_session.model is not None
    return headless.chat_session.model


def write_reply(
    events: Iterator[Event],
    output: ReplyOutput | None,
    progress: ProgressLine,
    handle: Callable[[Event], object] = lambda event: None,
) -> Event | None:
    """Write a reply while the model generates it.

    Args:
        output: where the reply is written; None to only wait for its end.
        handle: called with every other event.

    Returns:
        The event that ended the turn; None if no turn began.

    Raises:
        OSError: stdout cannot be written.
    """
    ending = None
    for event in events:
        if isinstance(event, PieceGenerated):
            progress.clear()
            if output:
                output.write(event.text)
        elif isinstance(event, EndOfTurn):
            ending = event
            progress.clear()
            if output:
                output.end()
        else:
            handle(event)
    return ending

"""The model's text on stdout: cleaned where a terminal shows it, as it is where a program reads it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from app.chat.events import Event, GenerationFailed, GenerationFinished, PieceGenerated, PromptRefused, PromptStopped
from app.cli.progress_line import ProgressLine
from app.text.clean_text import TextCleaner

ENDINGS = (GenerationFinished, GenerationFailed, PromptStopped, PromptRefused)
"""How a turn ends."""


class AnswerOutput:
    """Write an answer piece by piece, flushed at once, and end it with a newline."""

    def __init__(self) -> None:
        self._stream = sys.stdout
        self._cleaner = TextCleaner() if self._stream.isatty() else None
        self._last = "\n"

    def write(self, piece: str) -> None:
        """Write the next piece. Raises OSError: stdout is full, closed or nobody reads it."""
        self._put(self._cleaner.push(piece) if self._cleaner else piece)

    def end(self) -> None:
        """Write what was held back, and a newline unless the answer ended with one."""
        if self._cleaner:
            self._put(self._cleaner.flush())
        if self._last != "\n":
            self._put("\n")

    def _put(self, text: str) -> None:
        if text:
            self._last = text[-1]
            self._stream.write(text)
            self._stream.flush()


def write_answer(
    events: Iterator[Event],
    output: AnswerOutput | None,
    progress: ProgressLine,
    tell: Callable[[Event], object] = lambda event: None,
) -> Event | None:
    """Write a reply as it comes; without an output it is only waited for.

    Args:
        tell: takes what else happens.

    Returns:
        How the turn ended; None where nothing began.

    Raises:
        OSError: stdout cannot be written.
    """
    ending = None
    for event in events:
        if isinstance(event, PieceGenerated):
            progress.clear()
            if output:
                output.write(event.text)
        elif isinstance(event, ENDINGS):
            ending = event
            progress.clear()
            if output:
                output.end()
        else:
            tell(event)
    return ending


@contextmanager
def interrupt_stops(stop: Callable[[], object]) -> Iterator[None]:
    """Let the first Ctrl-C stop what runs, and a second one end the program as usual."""
    presses = 0

    def press(_number: int, _frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            raise KeyboardInterrupt
        stop()

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, before)

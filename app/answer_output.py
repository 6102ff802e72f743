"""The model's text on stdout: cleaned where a terminal shows it, as it is where a program reads it."""

import sys
from typing import TextIO

from app.clean_text import TextCleaner
from app.progress_line import ProgressLine
from app.reply import Reply


class AnswerOutput:
    """Write an answer piece by piece, flushed at once, and end it with a newline."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._cleaner = TextCleaner() if self._stream.isatty() else None
        self._last = "\n"

    def write(self, piece: str) -> None:
        """Write the next piece.

        Raises:
            OSError: stdout is full, closed or nobody reads it.
        """
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


def stream_answer(reply: Reply, output: AnswerOutput | None, progress: ProgressLine) -> None:
    """Make the reply and write it as it comes; without an output it is only made.

    Raises:
        OSError: stdout cannot be written.
        EngineError: the engine gave up; what had come is written, and ended with a newline.
    """
    try:
        for piece in reply:
            progress.clear()
            if output:
                output.write(piece)
    except OSError:
        raise
    except Exception:
        progress.clear()
        if output:
            output.end()
        raise
    progress.clear()
    if output:
        output.end()

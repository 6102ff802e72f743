"""One line on stderr that says what is going on while a model opens or a prompt is read; silent in a pipe."""

import os
import sys
import time
from typing import Any

from app.chat.status import Activity, EngineStatus
from app.text.clean_text import clean_line
from app.text.figures import size, whole_seconds

_LEAST_INTERVAL_S = 0.1
_WIDTH = 76


class ProgressLine:
    """Show and replace one line; nothing at all unless stderr is a terminal that can go back to the line's start."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._is_shown = False
        self._is_live = self._stream is not None and self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._last_s = 0.0

    def show_opening(self, progress: Any) -> None:
        """Show one step of opening a model."""
        if progress.stage == "compile":
            self.show(f"compiling for this CPU, once: {progress.done}/{progress.total} {progress.name}")
        else:
            self.show(f"loading {progress.name}: {size(progress.done)} of {size(progress.total)}")

    def show_prompt(self, done: int, total: int, elapsed_s: float) -> None:
        """Show how far the prompt is read and how long the rest will take at this rate."""
        left = f", about {whole_seconds(elapsed_s * (total - done) / done)} left" if done and elapsed_s > 0 else ""
        self.show(f"reading {done} of {total} tokens{left}")

    def show_status(self, status: EngineStatus) -> None:
        """Show what the engine's thread is doing, as far as it takes long."""
        if status.activity is Activity.COMPILING:
            self.show(f"compiling for this CPU, once: {status.done}/{status.total} {status.step}")
        elif status.activity is Activity.LOADING:
            self.show(f"loading {status.step}: {size(status.done)} of {size(status.total)}")
        elif status.activity is Activity.READING and status.meter is not None:
            self.show_prompt(status.done, status.total, status.meter.prefill_s)

    def show(self, text: str) -> None:
        """Show a line in place of the last one, at most ten times a second."""
        now_s = time.monotonic()
        if not self._is_live or now_s - self._last_s < _LEAST_INTERVAL_S:
            return
        self._last_s = now_s
        self._write(f"\r\x1b[K{clean_line(text, limit=_WIDTH)}")
        self._is_shown = True

    def clear(self) -> None:
        """Take the line away."""
        if self._is_shown:
            self._write("\r\x1b[K")
            self._is_shown = False

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._is_live = False

"""Documents read for a command or the line mode, with progress in a line and Ctrl-C to stop."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from app.cli.interrupts import interrupt_stops
from app.cli.output import ProgressLine
from app.documents.read import ReadDocuments, ReadingProgress, read_documents


def read_with_progress(names: Sequence[str], only_existing: bool = False) -> ReadDocuments:
    """Read documents and show how far it is.

    The first Ctrl-C stops the reading and keeps what is read by then.
    """
    progress = ProgressLine()
    is_stopped = threading.Event()

    def follow(step: ReadingProgress) -> bool:
        progress.follow_documents(step)
        return not is_stopped.is_set()

    with interrupt_stops(is_stopped.set):
        reading = read_documents(names, only_existing, follow)
    progress.clear()
    return reading

"""Reading documents for a command or the line mode, with a progress line and Ctrl-C to stop."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from app.cli.interrupts import interrupt_stops
from app.cli.output import ProgressLine
from app.documents.read import ReadDocuments, ReadingProgress, read_documents


def read_with_progress(names: Sequence[str], only_existing: bool = False) -> ReadDocuments:
    """Read documents with a progress line; the first Ctrl-C stops and returns those read so far.

    Args:
        names: files, folders or patterns.
        only_existing: whether names without a file are ignored.
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

"""Drafts and queued messages of a program that ended against the user's will: kept until the next start takes them.

One JSON object a line, for its owner alone. It is there between a crash or a signal and the next start only.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from app.program import paths
from app.program.small_file import append_file, read_bounded
from app.tui.draft import Draft
from app.tui.prompt_history import newest_lines, parse_drafts

MAX_FILE_BYTES = 64 << 20
"""Past this the oldest are not kept; a paste of the largest size takes 24 MB at most."""


class UnsentFile:
    """The drafts on disk; without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def keep(self, drafts: Sequence[Draft]) -> str:
        """Add drafts, oldest first, to what another run may have left; returns why that failed, or ""."""
        if self._path is None or paths.private_directory(self._path.parent) is None:
            return "no directory for the program's state is writable"
        try:
            room = MAX_FILE_BYTES - (self._path.lstat().st_size if self._path.exists() else 0)
            kept = newest_lines(drafts, room)
            append_file(self._path, b"".join(kept))
        except OSError as error:
            return f"{self._path}: {error.strerror}"
        return f"{self._path}: is full" if len(kept) < len(drafts) else ""

    def take(self) -> list[Draft]:
        """Return what was kept, oldest first, and keep it no longer."""
        if self._path is None:
            return []
        with suppress(OSError):
            raw = read_bounded(self._path, MAX_FILE_BYTES) or b""
            self._path.unlink()
            return parse_drafts(raw.splitlines())
        return []

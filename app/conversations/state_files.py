"""Saved states of conversations: the quota, the segments of a conversation, and names of models."""

from __future__ import annotations

import heapq
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from app.conversations.locks import StoreError
from app.conversations.store import Store
from app.program import paths
from app.program.small_file import read_bounded, replace_file
from app.text.clean_text import clean_line

if TYPE_CHECKING:
    from engine.saved_state import SegmentFile


def drop_oldest_states(quota_bytes: int) -> int:
    """Delete the states used longest ago until the rest fits, and return the deleted bytes."""
    from engine.saved_state import drop_stored  # imports NumPy, which the first frame does not need

    files = saved_files()
    return drop_stored(files, sum(file.n_bytes for file in files) - quota_bytes)


def saved_files() -> list[SegmentFile]:
    """Return all saved states, the first to drop first."""
    from engine.saved_state import stored_in

    return list(heapq.merge(*map(stored_in, kinds()), key=lambda file: file.used_s))


def saved_bytes() -> int:
    """Return the size of all saved states."""
    return sum(file.n_bytes for file in saved_files())


def kinds() -> list[Path]:
    """Return the directories of segments, one for each model and cache type."""
    root = paths.states_dir()
    with suppress(OSError):
        entries = os.scandir(root) if root is not None else ()
        return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    return []


class SegmentRecorder:
    """Records which segments of a directory a conversation needs.

    Args:
        path: the conversation's id below the store's directory.
        directory_name: name of the directory of segments.
    """

    def __init__(self, path: Path, directory_name: str) -> None:
        self._store = Store(path.parent)
        self._id = path.name
        self._directory_name = directory_name
        self._recorded: set[str] = set()

    def note(self, name: str) -> None:
        """Record a segment once. Raises OSError: it cannot be written."""
        if name not in self._recorded:
            try:
                self._store.add_segment(self._id, self._directory_name, name)
            except StoreError as error:
                raise OSError(0, str(error)) from None
            self._recorded.add(name)


FILE_NAME = "model.txt"
_MOST_CHARS = 100


def save_model_name(directory: Path, name: str) -> None:
    """Save the name of a directory's model, unless it has one. Raises OSError."""
    if not (directory / FILE_NAME).exists():
        replace_file(directory / FILE_NAME, clean_line(name, _MOST_CHARS).encode(), durable=False)


def model_name(directory: Path) -> str:
    """Return the name of a directory's model, cleaned; else the cleaned name of the directory."""
    with suppress(OSError):
        text = (read_bounded(directory / FILE_NAME, 8 * _MOST_CHARS) or b"").decode(
            "utf-8", "replace"
        )
        if name := clean_line(text, _MOST_CHARS):
            return name
    return clean_line(directory.name, _MOST_CHARS)

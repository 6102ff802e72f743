"""States of conversations on disk: a quota for all, those used longest ago go first; and notes of
whose they are."""

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
    """Delete states until the rest fits; texts stay. Returns the bytes that were deleted."""
    from engine.saved_state import drop_stored  # NumPy, which no first frame waits for

    files = saved_files()
    return drop_stored(files, sum(file.n_bytes for file in files) - quota_bytes)


def saved_files() -> list[SegmentFile]:
    """Return all saved states in the order in which they may be dropped."""
    from engine.saved_state import stored_in

    return list(heapq.merge(*map(stored_in, kinds()), key=lambda one: one.used_s))


def kinds() -> list[Path]:
    """Return the directories of segments: one for each model and type of cache."""
    root = paths.states_dir()
    with suppress(OSError):
        found = os.scandir(root) if root is not None else ()
        return sorted(Path(one.path) for one in found if one.is_dir(follow_symlinks=False))
    return []


class SegmentRecorder:
    """A conversation's segments of a ``kind``, their directory; ``path``: its id below the store's
    directory."""

    def __init__(self, path: Path, kind: str) -> None:
        self._store = Store(path.parent)
        self._id = path.name
        self._kind = kind
        self._known: set[str] = set()

    def note(self, name: str) -> None:
        """Write a name down, once. Raises OSError: it could not be written."""
        if name not in self._known:
            try:
                self._store.add_segment(self._id, self._kind, name)
            except StoreError as error:
                raise OSError(0, str(error)) from None
            self._known.add(name)


FILE_NAME = "model.txt"
_MOST_CHARS = 100


def save_model_name(place: Path, name: str) -> None:
    """Write the name down, where it is not known yet. Raises OSError: it could not be written."""
    if not (place / FILE_NAME).exists():
        replace_file(place / FILE_NAME, clean_line(name, _MOST_CHARS).encode(), durable=False)


def model_name(place: Path) -> str:
    """Return the name, cleaned; part of the directory's where none is known."""
    with suppress(OSError):
        found = (read_bounded(place / FILE_NAME, 8 * _MOST_CHARS) or b"").decode("utf-8", "replace")
        if name := clean_line(found, _MOST_CHARS):
            return name
    return clean_line(place.name, _MOST_CHARS)

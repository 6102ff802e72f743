"""Notes on saved states: which segments a conversation left, in the database; a model's name, next to its segments.

So what a deleted conversation alone needed goes with it, and the list of states says whose they are.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from app.conversations.locks import StoreError
from app.conversations.store import Store
from app.program.small_file import read_bounded, replace_file
from app.text.clean_text import clean_line


class SegmentNotes:
    """A conversation's segments of a ``kind``, their directory; ``path``: its id below the store's directory."""

    def __init__(self, path: Path, kind: str) -> None:
        self._store, self._id, self._kind = Store(path.parent), path.name, kind
        self._known: set[str] = set()

    def note(self, name: str) -> None:
        """Write a name down, once. Raises OSError: it could not be written."""
        if name not in self._known:
            try:
                self._store.note_segment(self._id, self._kind, name)
            except StoreError as error:
                raise OSError(0, str(error)) from None
            self._known.add(name)


FILE_NAME = "model.txt"
_MOST_CHARS = 100


def note_model_name(place: Path, name: str) -> None:
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

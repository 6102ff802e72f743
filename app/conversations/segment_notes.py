"""Notes on saved states: which segments a conversation left, beside its log; a model's name, beside its segments.

So what a deleted conversation alone needed goes with it, and the list of states says whose they are.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from app.program.small_file import append_file, read_bounded, replace_file
from app.text.clean_text import clean_line

SUFFIX = ".segments"
"""Behind what a state's file of an earlier version would be called."""
_MOST_BYTES = 64 << 20


class SegmentNotes:
    """A conversation's segments of a ``kind``, their directory; ``path``: what files about its states begin with."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path = path.with_name(f"{path.name}.{kind}{SUFFIX}")
        self._known = noted_in(self._path)

    def note(self, name: str) -> None:
        """Write a name down, once. Raises OSError: it could not be written."""
        if name not in self._known:
            append_file(self._path, f"{name}\n".encode())
            self._known.add(name)


def noted_in(path: Path) -> set[str]:
    """Return the names in a file; what is no segment's name is left out, and a file that cannot be read holds none."""
    from engine.saved_state.segments import Segment  # NumPy, which no first frame waits for

    with suppress(OSError):
        lines = (read_bounded(path, _MOST_BYTES) or b"").decode("ascii", "replace").split("\n")
        return {line for line in lines if Segment.of_name(line) is not None}
    return set()


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

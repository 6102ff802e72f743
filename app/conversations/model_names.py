"""Name of the model of a directory of saved states, for people: a file beside the segments."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from app.program.small_file import read_bounded, replace_file
from app.text.clean_text import clean_line

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

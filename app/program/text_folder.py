"""Folders in which each text file has a name that the user can type."""

from __future__ import annotations

import os
from pathlib import Path

from app.program import notices
from app.text.clean_text import clean_line

SUFFIXES = (".md", ".txt")
_MAX_FILES = 200
_MAX_NAME_CHARS = 60


def text_files(directory: Path | None, loss: str) -> dict[str, Path]:
    """Return the text files of a folder by name, without the ending, sorted.

    Names that need cleaning are left out. A name is only looked up among existing files, so it
    cannot lead elsewhere.

    Args:
        directory: the folder, which may be missing; None for none.
        loss: what it means if the folder cannot be read, for a notice.
    """
    if directory is None:
        return {}
    try:
        with os.scandir(directory) as entries:
            files = [Path(entry.path) for _, entry in zip(range(_MAX_FILES), entries, strict=False)]
    except OSError as error:
        notices.add_ignored(directory, error, loss)
        return {}
    return {path.stem: path for path in sorted(files) if _is_named(path)}


def _is_named(path: Path) -> bool:
    is_text = path.suffix.lower() in SUFFIXES
    return is_text and bool(path.stem) and clean_line(path.stem, _MAX_NAME_CHARS) == path.stem

"""Lines about files that were repaired or ignored, saved until a screen or the end of a command
shows them.
"""

from __future__ import annotations

from pathlib import Path

from app.text.clean_text import clean_line

MOST_LINES = 50
_MOST_CHARS = 280

_lines: dict[str, str] = {}
"""Lines to show, by the path they are about."""
_ignored: set[str] = set()
"""Files reported as unusable. A file that is read often is reported once."""


def add(path: Path, line: str) -> None:
    """Add a line about a path; it replaces an earlier one about the same path."""
    if len(_lines) < MOST_LINES:
        _lines[str(path)] = line


def add_ignored(path: Path, error: Exception, consequence: str) -> None:
    """Report once that a file cannot be used.

    Args:
        consequence: what happens without the file.
    """
    is_missing = isinstance(error, FileNotFoundError) and not path.is_symlink()
    if is_missing or str(path) in _ignored:
        return
    _ignored.add(str(path))
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    else:
        reason = str(error)
    add(path, clean_line(f"{path}: {reason}: {consequence}", _MOST_CHARS))


def forget_ignored() -> None:
    """Allow reported files to be reported again."""
    _ignored.clear()


def take(path: Path | None) -> str:
    """Return the line about a path and forget it; "" if there is none."""
    return _lines.pop(str(path), "")


def take_all() -> list[str]:
    """Return all lines and forget them."""
    lines = list(_lines.values())
    _lines.clear()
    return lines

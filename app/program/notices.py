"""Lines about files that were mended or left unused.

They are kept until a screen or the end of a command shows them.
"""

from __future__ import annotations

from pathlib import Path

from app.text.clean_text import clean_line

MOST_LINES = 50
_MOST_CHARS = 280

_waiting: dict[str, str] = {}
"""Lines that nobody has seen, by the path that each is about."""
_ignored: set[str] = set()
"""Files whose line about being unusable was already written.

A file that is read often gets one line.
"""


def add(path: Path, line: str) -> None:
    """Keep a line about a file or directory, in place of an earlier one about the same path."""
    if len(_waiting) < MOST_LINES:
        _waiting[str(path)] = line


def add_ignored(path: Path, error: Exception, consequence: str) -> None:
    """Say once that a file cannot be used; ``consequence``: what the program does without it."""
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
    """Let files that cannot be used be named again."""
    _ignored.clear()


def take(path: Path | None) -> str:
    """Return the line about a path and forget it; "" if there is none."""
    return _waiting.pop(str(path), "")


def take_all() -> list[str]:
    """Return all lines and forget them."""
    lines = list(_waiting.values())
    _waiting.clear()
    return lines

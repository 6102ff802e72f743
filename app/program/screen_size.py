"""Limits on the size of a terminal, in the environment and as reported by the terminal."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

from app.program import notices

MOST_COLUMNS = 1999
MOST_LINES = 999
"""Limits beyond any real screen."""


def ignore_impossible_sizes(environment: MutableMapping[str, str]) -> None:
    """Remove impossible widths and heights from the environment, so that the terminal is asked."""
    for name, most in (("COLUMNS", MOST_COLUMNS), ("LINES", MOST_LINES)):
        value = environment.get(name)
        if value is None or _is_count(value, most):
            continue
        del environment[name]
        if value.strip("0"):  # empty and zero conventionally mean unknown
            notices.add(
                Path(name),
                f"environment variable {name} is ignored: {value[:20]!a} (allowed: 1 to {most:,})",
            )


def _is_count(value: str, most: int) -> bool:
    return (
        value.isascii()
        and value.isdecimal()
        and len(value) <= len(str(most))
        and 1 <= int(value) <= most
    )


def bounded_size(columns: int, lines: int) -> tuple[int, int]:
    """Return a terminal size within the limits."""
    return max(1, min(columns, MOST_COLUMNS)), max(1, min(lines, MOST_LINES))

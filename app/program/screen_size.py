"""Limits on the size of a terminal, whatever its environment or the terminal itself reports."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

from app.program import notices

MOST_COLUMNS = 1999
MOST_LINES = 999
"""More than a wall of screens shows in the smallest letters."""


def ignore_impossible_sizes(environment: MutableMapping[str, str]) -> None:
    """Take a width or height out of the environment that no terminal has.

    The terminal is asked instead.
    """
    for name, most in (("COLUMNS", MOST_COLUMNS), ("LINES", MOST_LINES)):
        value = environment.get(name)
        if value is None or _is_count(value, most):
            continue
        del environment[name]
        if value.strip("0"):  # empty and zero mean by custom that the size is not known
            notices.add(
                Path(name),
                f"{name} of the environment is ignored: {value[:20]!a} (1 to {most:,} is possible)",
            )


def _is_count(value: str, most: int) -> bool:
    return (
        value.isascii()
        and value.isdecimal()
        and len(value) <= len(str(most))
        and 1 <= int(value) <= most
    )


def bounded_size(columns: int, lines: int) -> tuple[int, int]:
    """Return a terminal's size within the limits."""
    return max(1, min(columns, MOST_COLUMNS)), max(1, min(lines, MOST_LINES))

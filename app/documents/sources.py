"""Where the passages of a message come from, by the message alone: it is saved, so its sources are."""

from __future__ import annotations

import re

_HEADING = re.compile(r"(.{1,200}), (lines? \d+(?:-\d+)?|pages? \d+(?:-\d+)?):\n(`{3,})\n")


def sources_of(message: str) -> tuple[str, ...]:
    """Return the places of the passages that a message begins with."""
    sources: list[str] = []
    at = 0
    while heading := _HEADING.match(message, at):
        end = message.find(f"\n{heading[3]}\n", heading.end() - 1)
        if end < 0:
            break
        sources.append(f"{heading[1]} {heading[2]}")
        at = end + len(heading[3]) + 2
        at += message.startswith(" ", at)
    return tuple(sources)

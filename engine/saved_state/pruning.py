"""What a directory of segments takes on the disk, and dropping what was used longest ago. Reads names and sizes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine.saved_state.segments import Segment

_LEFT_OVER_S = 3600.0
"""Age in seconds at which an unfinished file is nobody's any more."""


@dataclass(frozen=True)
class Stored:
    """One segment on the disk.

    Attributes:
        path: of its file.
        segment: as its name says.
        n_bytes: size of the file.
        used_s: wall time of the last use of it, or of a segment that continues it.
    """

    path: Path
    segment: Segment
    n_bytes: int
    used_s: float


def stored_in(place: Path) -> list[Stored]:
    """Return all segments of a directory in the order in which they may be dropped.

    Used longest ago first, and none before those that continue it.
    """
    found = []
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            segment = Segment.of_name(entry.name)
            with suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                if segment is not None and entry.is_file(follow_symlinks=False):
                    found.append(Stored(Path(entry.path), segment, about.st_size, about.st_mtime))
                elif entry.name.startswith(".") and time.time() - about.st_mtime > _LEFT_OVER_S:
                    os.unlink(entry.path)
    found.sort(key=lambda one: -one.segment.last)
    used_s: dict[str, float] = {}
    for one in found:  # those that continue a segment come before it
        key, parent = one.segment.key, one.segment.parent
        used_s[key] = max(one.used_s, used_s.get(key, 0.0))
        used_s[parent] = max(used_s[key], used_s.get(parent, 0.0))
    dated = [Stored(one.path, one.segment, one.n_bytes, used_s[one.segment.key]) for one in found]
    return sorted(dated, key=lambda one: (one.used_s, -one.segment.last))


def drop_stored(stored: Iterable[Stored], excess_bytes: int) -> int:
    """Delete segments, the first ones first, until enough is free; returns the bytes that were deleted."""
    dropped_bytes = 0
    for one in stored:
        if dropped_bytes >= excess_bytes:
            break
        with suppress(OSError):
            one.path.unlink()
            dropped_bytes += one.n_bytes
    return dropped_bytes

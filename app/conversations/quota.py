"""Quota on the disk for all saved states: those used longest ago go first."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from app.program import paths
from app.text.record import record


@record
class SavedFile:
    """One file of the saved states. ``used_s``: wall time of its last use."""

    used_s: float
    path: Path
    n_bytes: int


def drop_oldest_states(quota_bytes: int) -> int:
    """Delete states until the rest fits; texts stay. Returns the bytes that were deleted."""
    files = saved_files()
    return drop(files, sum(file.n_bytes for file in files) - quota_bytes)


def saved_files() -> list[SavedFile]:
    """Return all saved states in the order in which they may be dropped."""
    from engine.saved_state import stored_in  # NumPy, which no first frame waits for

    segments = [[SavedFile(one.used_s, one.path, one.n_bytes) for one in stored_in(place)] for place in kinds()]
    return list(heapq.merge(*segments, key=lambda one: one.used_s))


def drop(files: Iterable[SavedFile], excess_bytes: int) -> int:
    """Delete states, the first ones first, until enough is free; returns the bytes that were deleted."""
    dropped_bytes = 0
    for file in files:
        if dropped_bytes >= excess_bytes:
            break
        with suppress(OSError):
            file.path.unlink()
            dropped_bytes += file.n_bytes
    return dropped_bytes


def kinds() -> list[Path]:
    """Return the directories of segments: one for each model and type of cache."""
    root = paths.states_dir()
    with suppress(OSError):
        found = os.scandir(root) if root is not None else ()
        return sorted(Path(one.path) for one in found if one.is_dir(follow_symlinks=False))
    return []

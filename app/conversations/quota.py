"""Quota on the disk for all saved states: those used longest ago go first."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from app.conversations.log_file import is_in_use
from app.conversations.segment_notes import SUFFIX
from app.conversations.store import LOG_NAME, Store
from app.program import paths
from app.text.record import record


@record
class SavedFile:
    """One file of the saved states. ``used_s``: wall time of its last use."""

    used_s: float
    path: Path
    n_bytes: int


def drop_oldest_states(store: Store, quota_bytes: int) -> int:
    """Delete states until the rest fits; texts stay. Returns the bytes that were deleted."""
    store.sweep(time.time())
    files = saved_files(store)
    return drop(files, sum(file.n_bytes for file in files) - quota_bytes)


def saved_files(store: Store) -> list[SavedFile]:
    """Return all saved states in the order in which they may be dropped."""
    from engine.saved_state import stored_in  # NumPy, which no first frame waits for

    earlier = [file for one in store.ids() for file in store.state_files(one) if not file.name.endswith(SUFFIX)]
    segments = [[SavedFile(one.used_s, one.path, one.n_bytes) for one in stored_in(place)] for place in kinds()]
    return list(heapq.merge(_existing([*earlier, *_prefixes()]), *segments, key=lambda one: one.used_s))


def _existing(paths: Iterable[Path]) -> list[SavedFile]:
    """Return the files that exist, used longest ago first."""
    found = []
    for path in paths:
        with suppress(OSError):
            about = path.lstat()
            found.append(SavedFile(about.st_mtime, path, about.st_size))
    return sorted(found, key=lambda one: one.used_s)


def drop(files: Iterable[SavedFile], excess_bytes: int) -> int:
    """Delete states, the first ones first, until enough is free; returns the bytes that were deleted."""
    dropped_bytes = 0
    for file in files:
        if dropped_bytes >= excess_bytes:
            break
        if not is_in_use(file.path.parent / LOG_NAME):  # an earlier version would only write all of it anew
            with suppress(OSError):
                file.path.unlink()
                dropped_bytes += file.n_bytes
    return dropped_bytes


def kinds() -> list[Path]:
    """Return the directories of segments: one for each model and type of cache."""
    return sorted(_listed(paths.states_dir(), lambda one: one.is_dir(follow_symlinks=False)))


def earlier_states(store: Store, kind: str) -> list[Path]:
    """Return files that earlier versions kept for a model and type of cache, those changed last first."""
    prefixes = [path for path in _prefixes() if path.name.startswith(f"{kind}-")]
    return [one.path for one in reversed(_existing([*store.states_of_kind(kind), *prefixes]))]


def _prefixes() -> list[Path]:
    return _listed(paths.prefixes_dir(), lambda one: one.is_file(follow_symlinks=False))


def _listed(directory: Path | None, is_wanted: Callable[[os.DirEntry[str]], bool]) -> list[Path]:
    with suppress(OSError):
        return [Path(one.path) for one in os.scandir(directory) if is_wanted(one)] if directory is not None else []
    return []

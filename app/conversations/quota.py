"""Quota on the disk for the saved states of all conversations: those used longest ago go first."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from app.conversations.log_file import is_in_use
from app.conversations.store import LOG_NAME, Store, size_of


def drop_oldest_states(store: Store, prefixes: Path | None, quota_bytes: int, live: Path | None) -> int:
    """Delete states until the rest fits; texts stay. Returns the bytes that were deleted.

    Args:
        prefixes: where the states of system prompts are; these go after those of conversations.
        live: the state that stays, because it is being kept; None for none.
    """
    store.sweep(time.time())
    entries = sorted(store.entries(), key=lambda entry: entry.last_use)
    files = [file for entry in entries for file in sorted(store.state_files(entry.id), key=_changed_s)]
    files += _prefixes_in(prefixes)
    sizes = {file: size_of(file) for file in files}
    excess = sum(sizes.values()) - quota_bytes
    dropped = 0
    for file in files:
        if dropped >= excess:
            break
        # A program that goes on with it would only write all of it anew, again and again.
        if not _is_part_of(file, live) and not is_in_use(file.parent / LOG_NAME):
            with suppress(OSError):
                file.unlink()
                dropped += sizes[file]
    return dropped


def _is_part_of(file: Path, live: Path | None) -> bool:
    """Whether a file is the live state, or one that is being written to become it."""
    return live is not None and file.parent == live.parent and file.name.lstrip(".").startswith(live.name)


def _prefixes_in(directory: Path | None) -> list[Path]:
    if directory is None:
        return []
    try:
        found = [Path(one.path) for one in os.scandir(directory) if one.is_file(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(found, key=_changed_s)


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0

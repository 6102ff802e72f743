"""What the saved states of all conversations may take on the disk together: those used longest ago go first."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from app.conversations.store import STATE_NAME, Store, size_of


def drop_oldest_states(store: Store, prefixes: Path | None, quota_bytes: int, live_id: str) -> int:
    """Delete states until the rest fits; texts stay. Returns the bytes that were deleted.

    Args:
        prefixes: where the states of system prompts are; these go after those of conversations.
        live_id: of the conversation whose state stays; "" for none.
    """
    entries = sorted(store.entries(), key=lambda entry: (entry.summary.order, entry.id))
    files = [(entry.id, file) for entry in entries for file in _files_of(store.state_path(entry.id))]
    files += [("", file) for file in _prefixes_in(prefixes)]
    sizes = {file: size_of(file) for _, file in files}
    excess = sum(sizes.values()) - quota_bytes
    dropped = 0
    for conversation_id, file in files:
        if dropped >= excess:
            break
        if conversation_id != live_id or not live_id:
            with suppress(OSError):
                file.unlink()
                dropped += sizes[file]
    return dropped


def _files_of(state: Path) -> list[Path]:
    """The state, what was refused, and what a writer left unfinished."""
    try:
        names = sorted(os.listdir(state.parent))
    except OSError:
        return []
    return [state.parent / name for name in names if name.lstrip(".").startswith(STATE_NAME)]


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

"""Prefixes that can be restored from a directory of segments."""

from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.saved_state import stored_in
from engine.saved_state.segments import PrefixKeys, read_head
from engine.saved_state.state_file import opened


def prefixes_in(directory: Path, session: Any) -> list[list[int]]:
    """Return the tokens of each complete prefix, shortest first.

    A prefix is complete if all its segments exist and their heads are valid.
    """
    tokens_by_key: dict[str, list[int]] = {PrefixKeys(session).at([], 0): []}
    for stored in sorted(stored_in(directory), key=lambda stored: stored.segment.last):
        try:
            with opened(stored.path) as fd:
                head = read_head(fd, stored.segment)
        except (OSError, EngineError):
            continue
        if head is not None and stored.segment.parent in tokens_by_key:
            tokens_by_key[stored.segment.key] = [*tokens_by_key[stored.segment.parent], *head[0]]
    return sorted(tokens_by_key.values(), key=len)

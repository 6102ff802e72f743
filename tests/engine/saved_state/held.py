"""What a directory of segments says that it holds."""

from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.saved_state import stored_in
from engine.saved_state.segments import PrefixKeys, read_head
from engine.saved_state.state_file import opened


def prefixes_in(place: Path, session: Any) -> list[list[int]]:
    """Return the tokens of each prefix whose segments are all there and have sound heads, the
    longest last."""
    known: dict[str, list[int]] = {PrefixKeys(session).at([], 0): []}
    for one in sorted(stored_in(place), key=lambda one: one.segment.last):
        try:
            with opened(one.path) as fd:
                head = read_head(fd, one.segment)
        except (OSError, EngineError):
            continue
        if head is not None and one.segment.parent in known:
            known[one.segment.key] = [*known[one.segment.parent], *head[0]]
    return sorted(known.values(), key=len)

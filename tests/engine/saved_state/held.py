"""What a directory of segments says that it holds."""

from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.saved_state import stored_in
from engine.saved_state.layout import StateHeader
from engine.saved_state.segments import PrefixKeys, read_head
from engine.saved_state.state_file import opened


def prefixes_in(place: Path, session: Any) -> list[list[int]]:
    """Return the tokens of each prefix whose segments are all there and have sound heads, the longest last."""
    header = StateHeader.of(session, bytes(16))
    known: dict[str, list[int]] = {PrefixKeys(header).at([], 0): []}
    for one in sorted(stored_in(place), key=lambda one: one.segment.last):
        try:
            with opened(one.path) as fd:
                token_ids = read_head(fd, one.segment, header).token_ids.tolist()
        except (OSError, EngineError):
            continue
        if one.segment.parent in known:
            known[one.segment.key] = [*known[one.segment.parent], *token_ids]
    return sorted(known.values(), key=len)

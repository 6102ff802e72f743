"""One line on the missing messages of a conversation whose log is damaged. Messages are counted from 1 on."""

from __future__ import annotations

from collections.abc import Sequence

from app.conversations.replay import Saved

_MOST_PLACES = 3


def damage_line(saved: Saved, n_lines: int) -> str:
    """Say how much of a log cannot be read, what is missing for that, and what it means for the model.

    Args:
        n_lines: that cannot be read, or not where they stand.

    Returns:
        "" where nothing is wrong.
    """
    messages, lost = saved.conversation.messages, set(saved.lost_behind)
    places: list[str] = []
    n_there = 0
    for index, message in enumerate(messages):
        is_gap = message.is_missing and not (index and messages[index - 1].is_missing)
        if is_gap or (index in lost and not message.is_missing):
            places.append(f"between messages {n_there} and {n_there + 1}" if n_there else "before message 1")
        n_there += not message.is_missing
    if saved.is_end_lost or len(messages) in lost:
        places.append(f"behind message {n_there}" if n_there else "in it")
    said = [f"what was said {_listed(places)} is missing"] if places else []
    if any(message.is_missing for message in messages):
        said.append("the model goes on behind that")
    if messages and not saved.has_head:
        said.append("the system prompt is missing")
    if not n_lines:
        return "; ".join(said)
    lines = "1 line of its file is" if n_lines == 1 else f"{n_lines} lines of its file are"
    return f"{lines} damaged: {', '.join(said) or 'no message is missing'}"


def _listed(places: Sequence[str]) -> str:
    more = len(places) - _MOST_PLACES
    shown = ", ".join(places[:_MOST_PLACES])
    return f"{shown} and in {more} more {'place' if more == 1 else 'places'}" if more > 0 else shown

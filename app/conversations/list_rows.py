"""The list of conversations as text: the same for the screen and the command."""

from __future__ import annotations

from datetime import date

from app.conversations.store import ConversationEntry
from app.text import figures
from app.text.glyphs import cut

_DATE = 16
_COUNT = 5
_SIZE = 6
_MODEL = 20
_LEAST_TITLE = 16
_WITH_DAY = 40
_WITH_MODEL = 66
_WITH_SIZE = 88
"""Columns from which a row has room for each."""


def heading(columns: int) -> str:
    """Name the columns."""
    return _line("conversation", "last used", "msgs", "size", "model", columns)


def row(entry: ConversationEntry, columns: int, now: str) -> str:
    """Write one conversation in ``columns`` columns."""
    size = figures.size(entry.text_bytes + entry.state_bytes)
    day = day_text(entry.changed, now)
    return _line(entry.title or "(empty)", day, str(entry.n_messages), size, entry.model, columns)


def details(entry: ConversationEntry) -> str:
    """Say more about one conversation: where the words are, or what it is made of."""
    if entry.snippet:
        return f"... {entry.snippet} ..."
    parts = [f"begun {moment_text(entry.began)}", *filter(None, (entry.model,))]
    parts += [
        figures.counted(entry.n_messages, "message"),
        f"{figures.count(entry.tokens)} tokens written",
    ]
    parts.append(f"text {figures.size(entry.text_bytes)}")
    if entry.state_bytes:
        parts.append(f"saved state {figures.size(entry.state_bytes)}")
    return " · ".join([*parts, f"number {int(entry.id)}"])


def _line(title: str, date: str, count: str, size: str, model: str, columns: int) -> str:
    if columns >= _WITH_DAY:
        tail = f"  {date:<{_DATE}}"
    else:
        tail = ""
    if columns >= _WITH_MODEL:
        tail += f"  {cut(model, _MODEL):<{_MODEL}}"
    if columns >= _WITH_SIZE:
        tail += f"  {count:>{_COUNT}}  {size:>{_SIZE}}"
    width = max(_LEAST_TITLE, columns - len(tail))
    return f"{cut(title, width):<{width}}{tail}"


def moment_text(moment: str) -> str:
    """Write a wall time as day and minute; "" for none."""
    return moment[:16].replace("T", " ")


def day_text(moment: str, now: str) -> str:
    """Write a wall time as a person says it: "today 00:08", "yesterday 23:10", "2026-11-21 10:00";
    "" for none."""
    try:
        days = (date.fromisoformat(now[:10]) - date.fromisoformat(moment[:10])).days
    except ValueError:
        return moment_text(moment)
    if 0 <= days <= 1:
        name = ("today", "yesterday")[days]
    else:
        name = moment[:10]
    return f"{name} {moment[11:16]}".rstrip()

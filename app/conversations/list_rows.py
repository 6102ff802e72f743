"""Rows of the list of conversations, for the screen and the command."""

from __future__ import annotations

from calendar import month_name
from datetime import date

from app.conversations.mark_rows import tags_text
from app.conversations.store import ConversationEntry
from app.text import figures
from app.text.glyphs import cut

_DATE_WIDTH = 16
_COUNT_WIDTH = 5
_SIZE_WIDTH = 6
_MODEL_WIDTH = 20
_MIN_TITLE_WIDTH = 16

_WEEK_DAYS = 7
_MIN_COLUMNS_WITH_DAY = 40
"""Width of a row from which it shows the day of the last use, in columns."""
_MIN_COLUMNS_WITH_MODEL = 66
"""Width of a row from which it also shows the model, in columns."""
_MIN_COLUMNS_WITH_COUNTS = 88
"""Width of a row from which it also shows the number of messages and the size, in columns."""


def heading(columns: int) -> str:
    """Return the heading of the list."""
    return _line("conversation", "last used", "msgs", "size", "model", columns)


def row(entry: ConversationEntry, columns: int, now: str) -> str:
    """Return a row of at most ``columns`` columns."""
    size = figures.size(entry.text_bytes + entry.state_bytes)
    day = day_text(entry.changed, now)
    title = entry.title or "(empty)"
    if entry.tags:
        title = f"{title}  {tags_text(entry.tags)}"
    return _line(title, day, str(entry.n_messages), size, entry.model, columns)


def facts(entry: ConversationEntry) -> str:
    """Return facts about a conversation in one line."""
    parts = [
        f"started {moment_text(entry.began)}",
        figures.counted(entry.n_messages, "message"),
        branches_text(entry.n_branches),
        tags_text(entry.tags),
        f"{figures.count(entry.tokens)} tokens written",
        f"text {figures.size(entry.text_bytes)}",
    ]
    if entry.state_bytes:
        parts.append(f"saved state {figures.size(entry.state_bytes)}")
    parts.append(f"number {int(entry.id)}")
    return " · ".join(filter(None, parts))


def branches_text(n_branches: int) -> str:
    """Return the number of branches that are not shown in words; "" if there are none."""
    if not n_branches:
        return ""
    return "1 other branch" if n_branches == 1 else f"{figures.count(n_branches)} other branches"


def _line(title: str, date: str, count: str, size: str, model: str, columns: int) -> str:
    if columns >= _MIN_COLUMNS_WITH_DAY:
        tail = f"  {date:<{_DATE_WIDTH}}"
    else:
        tail = ""
    if columns >= _MIN_COLUMNS_WITH_MODEL:
        tail += f"  {cut(model, _MODEL_WIDTH):<{_MODEL_WIDTH}}"
    if columns >= _MIN_COLUMNS_WITH_COUNTS:
        tail += f"  {count:>{_COUNT_WIDTH}}  {size:>{_SIZE_WIDTH}}"
    width = max(_MIN_TITLE_WIDTH, columns - len(tail))
    return f"{cut(title, width):<{width}}{tail}"


def moment_text(moment: str) -> str:
    """Return a wall time as day and minute; "" for no time."""
    return moment[:16].replace("T", " ")


def period_of(moment: str, now: str) -> str:
    """Return the part of the past of a wall time: "Today", "Last 7 days", "October 2026".

    "" for no time.
    """
    try:
        day = date.fromisoformat(moment[:10])
        days = (date.fromisoformat(now[:10]) - day).days
    except ValueError:
        return ""
    if days <= 0:
        return "Today"
    if days == 1:
        return "Yesterday"
    if days <= _WEEK_DAYS:
        return f"Last {_WEEK_DAYS} days"
    return f"{month_name[day.month]} {day.year}"


def day_text(moment: str, now: str) -> str:
    """Return a wall time as people say it: "today 00:08", "yesterday 23:10", "2026-11-21 10:00".

    "" for no time.
    """
    try:
        days = (date.fromisoformat(now[:10]) - date.fromisoformat(moment[:10])).days
    except ValueError:
        return moment_text(moment)
    if 0 <= days <= 1:
        name = ("today", "yesterday")[days]
    else:
        name = moment[:10]
    return f"{name} {moment[11:16]}".rstrip()

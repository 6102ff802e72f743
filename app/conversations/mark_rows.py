"""Rows of a conversation's pin, tags and summaries. Rows are not trusted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from app.conversations.conversation import Summary
from app.conversations.tables import has_table
from app.program.refusals import Refusal
from app.text.clean_text import clean_line, clean_text
from app.text.record import record

if TYPE_CHECKING:
    import sqlite3

MAX_TAG_CHARS = 30
MAX_TAGS = 20
"""Limit on the tags of a conversation."""
MAX_SUMMARIES = 100
"""Limit on the summaries of a conversation."""
MAX_SUMMARY_CHARS = 1 << 16
TAG_SIGN = "#"
"""First character of a tag in a search."""
_NO_TAG = re.compile(r"[\s,#\"']+")
_SUMMARY_COLUMNS = "conversation, n_messages, n_dropped, text"


@record
class Marks:
    """Pin and tags of a conversation."""

    is_pinned: bool = False
    tags: tuple[str, ...] = ()
    """Tags in alphabetical order."""

    def with_tag(self, tag: str) -> Marks:
        """Return the marks with a tag. Raises Refusal: there are too many."""
        if tag in self.tags:
            return self
        if len(self.tags) >= MAX_TAGS:
            raise Refusal(f"a conversation has at most {MAX_TAGS} tags (/tag -NAME removes one)")
        return Marks(self.is_pinned, in_order((*self.tags, tag)))

    def without_tag(self, tag: str) -> Marks:
        """Return the marks without a tag. Raises Refusal: there is no such tag."""
        if tag not in self.tags:
            raise Refusal(f"this conversation has no tag {tag}")
        return Marks(self.is_pinned, tuple(name for name in self.tags if name != tag))


def in_order(tags: Iterable[str]) -> tuple[str, ...]:
    """Return tags in alphabetical order, each once."""
    return tuple(sorted(set(tags), key=str.casefold))


def clean_tag(text: str) -> str:
    """Return a typed tag as one word in small letters; "" if nothing of it can be a tag."""
    words = _NO_TAG.split(clean_line(text, 4 * MAX_TAG_CHARS).casefold())
    return "-".join(filter(None, words))[:MAX_TAG_CHARS].strip("-")


def sound_tags(values: object) -> tuple[str, ...]:
    """Return the tags in a list that is not trusted."""
    if not isinstance(values, (list, tuple)):
        return ()
    names = (clean_tag(value) for value in values if isinstance(value, str))
    return in_order(filter(None, names))[:MAX_TAGS]


def sound_marks(values: object) -> Marks:
    """Return the marks in exported values, which are not trusted."""
    if not isinstance(values, dict):
        return Marks()
    return Marks(values.get("pinned") is True, sound_tags(values.get("tags")))


def searched_tag(word: str) -> str:
    """Return the tag that a word of a search names; "" if it names none."""
    if not word.startswith(TAG_SIGN):
        return ""
    return clean_tag(word)


def tags_text(tags: Sequence[str]) -> str:
    """Return tags as a search names them, in one line."""
    return " ".join(TAG_SIGN + tag for tag in tags)


def marks_of(db: sqlite3.Connection, numbers: Sequence[int] = ()) -> dict[int, Marks]:
    """Return the marks of conversations that have any, by number.

    Args:
        numbers: conversations to look at; empty for all.
    """
    if not has_table(db, "tag"):
        return {}
    condition = ""
    if numbers:
        condition = f" WHERE conversation IN ({', '.join('?' * len(numbers))})"
    names: dict[int, list[str]] = {}
    for number, name in db.execute(f"SELECT conversation, name FROM tag{condition}", numbers):
        names.setdefault(number, []).append(name)
    pinned = {
        number for (number,) in db.execute(f"SELECT conversation FROM pin{condition}", numbers)
    }
    return {
        number: Marks(number in pinned, sound_tags(names.get(number, [])))
        for number in {*names, *pinned}
    }


def put_marks(marks: Marks) -> Callable[[sqlite3.Connection, int], None]:
    """Return a change that replaces the marks of a conversation."""

    def change(db: sqlite3.Connection, number: int) -> None:
        if not has_table(db, "tag"):
            return
        db.execute("DELETE FROM tag WHERE conversation=?", (number,))
        db.execute("DELETE FROM pin WHERE conversation=?", (number,))
        rows = [(number, name) for name in marks.tags]
        db.executemany("INSERT INTO tag(conversation, name) VALUES(?, ?)", rows)
        if marks.is_pinned:
            db.execute("INSERT INTO pin(conversation) VALUES(?)", (number,))

    return change


# ---- summaries


def put_context(
    n_dropped: int, summaries: Sequence[Summary]
) -> Callable[[sqlite3.Connection, int], None]:
    """Return a change that saves which messages the model reads, and the summaries of others."""

    def change(db: sqlite3.Connection, number: int) -> None:
        db.execute("UPDATE conversation SET n_dropped=? WHERE id=?", (n_dropped, number))
        if not has_table(db, "summary"):
            return
        db.execute("DELETE FROM summary WHERE conversation=?", (number,))
        rows = [
            (number, summary.n_messages, summary.n_dropped_before, summary.text)
            for summary in summaries
        ]
        db.executemany(f"INSERT INTO summary({_SUMMARY_COLUMNS}) VALUES(?, ?, ?, ?)", rows)

    return change


def read_summaries(db: sqlite3.Connection, number: int, n_dropped: int) -> tuple[Summary, ...]:
    """Return the summaries of a conversation, those of at most ``n_dropped`` messages."""
    if not has_table(db, "summary"):
        return ()
    sql = (
        "SELECT n_messages, n_dropped, text FROM summary WHERE conversation=? "
        "ORDER BY n_messages LIMIT ?"
    )
    values = [
        {"n_messages": n_messages, "n_dropped_before": n_before, "text": text}
        for n_messages, n_before, text in db.execute(sql, (number, MAX_SUMMARIES))
    ]
    return sound_summaries(values, n_dropped)


def sound_summaries(values: object, n_dropped: int) -> tuple[Summary, ...]:
    """Return the summaries in a list that is not trusted, each of more messages than the last."""
    if not isinstance(values, list):
        return ()
    summaries: list[Summary] = []
    for value in values[:MAX_SUMMARIES]:
        summary = _sound_summary(value)
        least = summaries[-1].n_messages if summaries else 0
        if summary is not None and least < summary.n_messages <= n_dropped:
            summaries.append(summary)
    return tuple(summaries)


def _sound_summary(value: object) -> Summary | None:
    if not isinstance(value, dict):
        return None
    text = value.get("text")
    n_messages = value.get("n_messages")
    n_before = value.get("n_dropped_before")
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_SUMMARY_CHARS:
        return None
    if type(n_messages) is not int or n_messages % 2 or type(n_before) is not int:
        return None
    if not 0 <= n_before < n_messages:
        return None
    return Summary(clean_text(text), n_messages, n_before)

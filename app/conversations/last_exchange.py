"""Last exchanges of conversations: the last question and the beginning of its answer, for lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.conversations.message_row import parsed
from app.text.clean_text import screen_text
from app.text.record import record

if TYPE_CHECKING:
    import sqlite3

MOST_CHARS = 4000
"""Limit on each text of an exchange, more than a screen shows."""
_NUMBERS_OF_ROWS = (2, 16)
"""Numbers of messages that are looked at from the last one back: mostly two are enough."""


@record
class LastExchange:
    """A question and its answer, safe to show."""

    question: str = ""
    """Beginning of the question; "" if it is not known."""
    reply: str = ""
    """Beginning of the answer; "" if there is none yet."""


def last_exchanges(db: sqlite3.Connection, numbers: Sequence[int]) -> dict[int, LastExchange]:
    """Return the last exchange of each of these conversations that has messages."""
    exchanges = {}
    for number in numbers:
        for n_rows in _NUMBERS_OF_ROWS:
            exchange = _last_exchange(db, number, n_rows)
            if exchange is None or exchange.question:
                break
        if exchange is not None:
            exchanges[number] = exchange
    return exchanges


def _last_exchange(db: sqlite3.Connection, number: int, n_rows: int) -> LastExchange | None:
    sql = (
        "SELECT role, substr(text, 1, ?), CASE role WHEN 'user' THEN more END FROM message "
        "WHERE conversation=? AND place>=0 ORDER BY place DESC LIMIT ?"
    )
    rows = db.execute(sql, (MOST_CHARS, number, n_rows)).fetchall()
    reply = ""
    for role, text, json_text in rows:
        if role != "user":
            reply = reply or _shown(text)
            continue
        values = parsed(json_text)
        if not isinstance(values, dict):
            values = {}
        if values.get("results"):  # Tools answered here, not the user.
            continue
        return LastExchange(_shown(values.get("folded")) or _shown(text), reply)
    return LastExchange("", reply) if rows else None


def _shown(text: object) -> str:
    if not isinstance(text, str):
        return ""
    return screen_text(text[:MOST_CHARS]).strip()

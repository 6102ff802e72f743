"""Details of a saved conversation: the last exchange, and facts about the whole."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from textual.content import Content

from app.conversations import list_rows as rows
from app.conversations.last_exchange import LastExchange
from app.conversations.store import ConversationEntry
from app.text.glyphs import Glyphs
from app.tui.drawing.lines import EMPTY, Line, Span, SpanRole, line, muted

_QUESTION_ROWS = 2
_BESIDE_QUESTION_ROWS = 8
"""Limits on the rows of a question below the list and next to it."""
_WRITER_CHARS = 40


def details(
    entry: ConversationEntry,
    exchange: LastExchange,
    columns: int,
    most_rows: int,
    is_next_to: bool,
    glyphs: Glyphs,
) -> list[Line]:
    """Return the match of a search, the last exchange and facts about the conversation.

    Args:
        most_rows: limit on the lines; the answer is cut first.
        is_next_to: whether the details are next to the list, with room for empty lines.
    """
    facts = [line(muted(row)) for row in wrap(rows.facts(entry), columns)]
    match = []
    if entry.snippet:
        match = [line(row) for row in _wrapped(f"... {entry.snippet} ...", columns)]

    question_rows = _BESIDE_QUESTION_ROWS if is_next_to else _QUESTION_ROWS
    question = said("You", exchange.question, columns, SpanRole.READING)
    question = _cut(question, question_rows, glyphs)
    writer = entry.model[:_WRITER_CHARS] or "Model"
    reply = said(writer, exchange.reply, columns, SpanRole.WRITING)

    parts = [part for part in (match, question, reply, facts) if part]
    n_empty = len(parts) - 1 if is_next_to else 0
    reply_rows = most_rows - len(match) - len(question) - len(facts) - n_empty
    parts = [_cut(part, reply_rows, glyphs) if part is reply else part for part in parts]
    separator = [EMPTY] if is_next_to else []
    lines: list[Line] = []
    for part in parts:
        if lines and part:
            lines += separator
        lines += part
    return lines


def said(speaker: str, text: str, columns: int, role: SpanRole) -> list[Line]:
    """Return a text after the name of its speaker; empty if there is no text."""
    if not text:
        return []
    label = f"{speaker}: "
    first, *others = _wrapped(label + text, columns)
    name = first[: len(label)]
    return [line(Span(name, role), first[len(label) :]), *(line(row) for row in others)]


def _wrapped(text: str, columns: int) -> list[str]:
    """Return the lines of a text in a width, without empty ones."""
    lines = (row.rstrip() for row in text.splitlines())
    return [
        part.plain.rstrip() for row in lines if row.strip() for part in Content(row).wrap(columns)
    ]


def _cut(lines: Sequence[Line], most_rows: int, glyphs: Glyphs) -> list[Line]:
    """Return the first lines, with a sign if others are left out."""
    if len(lines) <= most_rows:
        return list(lines)
    kept = list(lines[: max(0, most_rows)])
    if kept:
        kept[-1] = line(*kept[-1], muted(f" {glyphs.cut}"))
    return kept

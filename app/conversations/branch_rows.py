"""Rows of branches that are not shown: a row for each branch from a message of the shown path.

A row has the messages as JSON and all their words as text, for searches; those of branches within
the branch, too. Rows are not trusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from app.conversations.branches import MAX_DEPTH
from app.conversations.conversation import Branch, ChatMessage, Role
from app.conversations.message_row import (
    UnsoundError,
    message_of_values,
    parsed,
    row_of,
    values_of,
)
from app.conversations.tables import has_table

if TYPE_CHECKING:
    import sqlite3

TABLE = "branch"


def row_of_branch(branch: Branch) -> tuple[int, int, str, str]:
    """Return the number of tokens, the size in bytes, the text and the messages as JSON."""
    rows = [row_of(message) for message in _all_messages(branch)]
    tokens = sum(tokens for _, tokens, _, _, _ in rows)
    text = "\n\n".join(text for _, _, _, text, _ in rows)
    json_text = json.dumps(_values_of_branch(branch), separators=(",", ":"))
    return tokens, len(text.encode()) + len(json_text), text, json_text


def _all_messages(branch: Branch) -> Iterator[ChatMessage]:
    for message in branch:
        yield message
        for alternative in message.alternatives:
            yield from _all_messages(alternative)


def _values_of_branch(branch: Branch) -> list[dict[str, Any]]:
    items = []
    for message in branch:
        values = {"role": message.role.value, "text": message.text, **values_of(message)}
        if message.alternatives:
            values["branches"] = [_values_of_branch(branch) for branch in message.alternatives]
        items.append(values)
    return items


def branch_of(json_text: object, first_role: Role) -> Branch:
    """Return the branch of a row, whose first message has this role. Raises UnsoundError."""
    try:
        return _branch_of(parsed(json_text), first_role, MAX_DEPTH)
    except RecursionError:
        raise UnsoundError from None


def _branch_of(items: Any, first_role: Role, most_depth: int) -> Branch:
    if not (isinstance(items, list) and items and most_depth):
        raise UnsoundError
    roles = (first_role, next(role for role in Role if role is not first_role))
    messages = []
    for position, values in enumerate(items):
        if not isinstance(values, dict):
            raise UnsoundError
        message = message_of_values(values)
        branches = values.get("branches", [])
        if message.role is not roles[position % 2] or not isinstance(branches, list):
            raise UnsoundError
        alternatives = [_branch_of(branch, message.role, most_depth - 1) for branch in branches]
        set_alternatives(message, alternatives)
        messages.append(message)
    return tuple(messages)


def set_alternatives(message: ChatMessage, branches: Sequence[Branch]) -> None:
    """Give a message its alternatives; its number among them was saved with it."""
    message.alternatives = tuple(branches)
    message.n_older = min(message.n_older, len(branches))


# ---- the table, which older databases lack


def insert_branches(
    db: sqlite3.Connection, conversation_number: int, place: int, branches: Sequence[Branch]
) -> None:
    """Write the branches from a message that are not shown."""
    if not branches or not has_table(db, TABLE):
        return
    columns = "conversation, place, number, tokens, n_bytes, text, more"
    rows = [
        (conversation_number, place, number, *row_of_branch(branch))
        for number, branch in enumerate(branches)
    ]
    db.executemany(f"INSERT INTO branch({columns}) VALUES(?, ?, ?, ?, ?, ?, ?)", rows)


def delete_branches(db: sqlite3.Connection, conversation_number: int, first_place: int) -> None:
    """Delete the branches from all messages from a place on."""
    if has_table(db, TABLE):
        row = (conversation_number, first_place)
        db.execute("DELETE FROM branch WHERE conversation=? AND place>=?", row)


def read_branches(
    db: sqlite3.Connection, conversation_number: int, most_chars: int
) -> Iterator[tuple[int, Branch | None]]:
    """Yield the place and the messages of each branch, in order; None for an unsound one.

    Args:
        most_chars: limit on all branches; the branches beyond it are unsound.
    """
    if not has_table(db, TABLE):
        return
    sql = "SELECT place, more FROM branch WHERE conversation=? AND place>=0 ORDER BY place, number"
    n_chars = 0
    for place, json_text in db.execute(sql, (conversation_number,)):
        n_chars += len(str(json_text))
        if type(place) is not int or n_chars > most_chars:
            yield 0, None
            continue
        role = Role.ASSISTANT if place % 2 else Role.USER
        try:
            yield place, branch_of(json_text, role)
        except UnsoundError:
            yield place, None


def totals_of_branches(db: sqlite3.Connection) -> dict[int, tuple[int, float, float]]:
    """Return number, tokens and bytes of the branches of each conversation that has some."""
    if not has_table(db, TABLE):
        return {}
    sql = (
        "SELECT conversation, count(*), total(tokens), total(n_bytes) FROM branch "
        "GROUP BY conversation"
    )
    return {number: totals for number, *totals in db.execute(sql)}


def texts_of_branches_with(word: str, db: sqlite3.Connection) -> dict[int, str]:
    """Return the text of the first branch with a word for each conversation number.

    The function ``has`` must be known to the database.
    """
    if not has_table(db, TABLE):
        return {}
    sql = "SELECT conversation, text FROM branch WHERE has(text, ?) ORDER BY id DESC"
    return dict(db.execute(sql, (word,)).fetchall())

"""Import of branches from this program's own JSON export. Files are not trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.conversations.branches import MAX_BRANCHES, MAX_DEPTH
from app.conversations.conversation import Branch, ChatMessage, Role, can_be_saved
from app.conversations.message_row import UnsoundError, reply_of
from app.conversations.store import MOST_MESSAGES
from app.text.clean_text import clean_text

LOST = "branch that cannot be read"
"""Phrase for a branch that is left out."""

Values = Mapping[str, Any]


def add_branches(message: ChatMessage, values: Values, left_out: Counter[str]) -> None:
    """Give an imported message the other branches from its place.

    Args:
        values: fields of the message in the file.
        left_out: counts the branches that cannot be read.
    """
    _add_branches(message, values, left_out, MAX_DEPTH)


def _add_branches(
    message: ChatMessage, values: Values, left_out: Counter[str], most_depth: int
) -> None:
    items = values.get("others", [])
    if not isinstance(items, list):
        left_out[LOST] += 1
        return
    n_older = values.get("n_older", 0)
    if type(n_older) is not int or n_older < 0:
        n_older = 0

    branches: list[Branch] = []
    n_branches_before = 0
    for number, item in enumerate(items):
        try:
            if not most_depth or len(branches) >= MAX_BRANCHES - 1:
                raise UnsoundError
            branches.append(_branch(item, message.role, left_out, most_depth - 1))
            n_branches_before += number < n_older
        except UnsoundError:
            left_out[LOST] += 1
    message.alternatives = tuple(branches)
    message.n_older = n_branches_before


def _branch(values: Any, role: Role, left_out: Counter[str], most_depth: int) -> Branch:
    """Return a branch from the fields of its first message. Raises UnsoundError."""
    if not isinstance(values, dict):
        raise UnsoundError
    later = values.get("later", [])
    if not isinstance(later, list) or len(later) >= MOST_MESSAGES:
        raise UnsoundError
    if values.get("others"):  # The message that holds the branch has all from its place.
        left_out[LOST] += 1
    messages = [replace(_message(values, role), alternatives=(), n_older=0)]
    for item in later:
        role = next(other for other in Role if other is not role)
        if not isinstance(item, dict):
            raise UnsoundError
        message = _message(item, role)
        _add_branches(message, item, left_out, most_depth)
        messages.append(message)
    return tuple(messages)


def _message(values: Values, role: Role) -> ChatMessage:
    """Return a message without branches. Raises UnsoundError."""
    text = values.get("text")
    has_role = values.get("role", role.value) == role.value
    if not (has_role and isinstance(text, str) and can_be_saved(text)):
        raise UnsoundError
    if role is Role.USER:
        return ChatMessage(role, clean_text(text))
    return imported_reply(values, clean_text(text))


def imported_reply(values: Values, text: str) -> ChatMessage:
    """Return a reply of the program's own export, without branches. Raises UnsoundError."""
    unknown_values: Values = {
        "ids": None,
        "raw": None,
        "calls": [],
        "server_fields": None,
        "others": [],
    }
    reply = reply_of({**values, **unknown_values, "edited": values.get("is_edited")})
    reply.text = text
    reply.raw = ""
    return reply

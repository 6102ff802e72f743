"""Room in a context that is full: which of the oldest turns go, so that the next one fits. In the engine's thread.

Whole turns go, and the system prompt stays. A quarter of the context is made free where that is possible, so that this
does not happen with every message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.chat_prompt import ChatPrompt

FREED_SHARE = 4
"""One part in so many is free afterwards."""


def tokens_alone(starts: Sequence[int], n_tokens: int) -> int:
    """Return how many of a prompt's tokens would be left if all turns but the last went.

    Args:
        starts: where each turn begins, the newest last.
        n_tokens: of the prompt.
    """
    return n_tokens - (starts[-1] - starts[0]) if starts else n_tokens


def turns_to_drop(starts: Sequence[int], n_tokens: int, n_ctx: int, least_free: int) -> int:
    """Return how many of the oldest turns should go; at most all but the last.

    Args:
        starts: where each turn begins, the newest last.
        n_tokens: of the prompt.
        least_free: room for a reply that must be left.
    """
    for wanted_free in (max(least_free, n_ctx // FREED_SHARE), least_free):
        for n in range(1, len(starts)):
            if n_tokens - (starts[n] - starts[0]) + wanted_free <= n_ctx:
                return n
    return max(0, len(starts) - 1)


def drop_turns(chat: ChatPrompt, n_turns: int) -> None:
    """Take the oldest turns out of a conversation; what is left keeps its tokens."""
    system = chat.messages[0].content if chat.messages and chat.messages[0].role == "system" else None
    turns = _take_turns(chat)[n_turns:]
    chat.start(system)
    for question, ids, text in turns:
        chat.add_user(question)
        if ids is not None:
            chat.add_reply(list(ids), text)


def _take_turns(chat: ChatPrompt) -> list[tuple[str, Sequence[int] | None, str]]:
    turns: list[tuple[str, Sequence[int] | None, str]] = []
    while chat.messages and chat.messages[-1].role != "system":
        ids, text = None, ""
        if chat.messages[-1].role == "assistant":
            taken = chat.take_reply()
            ids, text = taken.ids, taken.text
        turns.append((chat.messages[-1].content, ids, text))
        chat.rewind(len(chat.messages) - 1)
    return turns[::-1]

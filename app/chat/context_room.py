"""Room in a context that is full: which of the oldest turns go, so that the next prompt fits. In the engine's thread.

Whole turns go, and the system prompt stays. A quarter of the context is made free where that is possible, so that this
does not happen with every message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from app.conversations.thinking import Thinking
from app.text.record import record

if TYPE_CHECKING:
    from engine.prompt.chat_prompt import ChatPrompt, Message, SavedChat

MIN_REPLY_TOKENS = 16
"""Room that must be left for an answer before a prompt is taken."""
ANNOUNCED_SHARE = 0.85
"""From here on the user knows what will happen when the context is full."""
FREED_SHARE = 4
"""After turns were dropped, one part in this many of the context is free."""


class NoRoomError(Exception):
    """A prompt does not fit, whatever goes."""

    def __init__(self, needed_tokens: int) -> None:
        super().__init__(f"{needed_tokens} tokens are needed")
        self.needed_tokens = needed_tokens
        """Of the context, for the prompt alone with the least of a reply."""


@record
class EarlierPart:
    """The beginning of a reply that is continued."""

    ids: Sequence[int]
    text: str
    """Text of the ids, without a character of which the last id holds only a part."""
    thinking: Thinking | None


@record
class TurnPrompt:
    """The prompt of one reply."""

    ids: Sequence[int]
    """Up to where the reply begins."""
    earlier: EarlierPart | None = None
    """Of a reply that is continued; None for a new one."""
    chat: ChatPrompt | None = None
    """The conversation that ends with the message to answer and gets the reply; None for a plain text."""
    leaves_loop: bool = False
    """Whether the reply is one that repeated itself."""
    dropped_turns: int = 0
    dropped_tokens: int = 0
    """What had to go for it."""

    @property
    def all_ids(self) -> list[int]:
        """Tokens that stand before the first new one: the prompt and the beginning of the reply."""
        return [*self.ids, *(self.earlier.ids if self.earlier is not None else ())]

    @property
    def opening(self) -> str:
        """The last words of the prompt, which may open a thinking block."""
        return self.chat.opening if self.chat is not None else ""


def make_room(
    chat: ChatPrompt, n_ctx: int, least_free: int, build: Callable[[int], TurnPrompt]
) -> tuple[TurnPrompt, SavedChat]:
    """Build a prompt; the oldest whole turns go until it fits. Returns it, and the conversation without its turn.

    Args:
        least_free: room for a reply that must be left.
        build: brings the conversation to where the reply begins; told how many turns went before, all in all.

    Raises:
        NoRoomError: it does not fit without any other turn either.
        Exception: whatever ``build`` raises. After either the conversation is as it was.
    """
    saved = before = chat.save()
    dropped_turns = dropped_tokens = 0
    try:
        while (n_tokens := len((prompt := build(dropped_turns)).all_ids)) + least_free > n_ctx:
            starts = chat.turn_starts()
            alone = n_tokens - (starts[-1] - starts[0] if starts else 0) + least_free
            n_turns = turns_to_drop(starts, n_tokens, n_ctx, least_free)
            if alone > n_ctx or not n_turns:
                raise NoRoomError(alone)
            dropped_turns, dropped_tokens = dropped_turns + n_turns, dropped_tokens + starts[n_turns] - starts[0]
            chat.restore(before)
            drop_turns(chat, n_turns)
            before = chat.save()
    except BaseException:
        chat.restore(saved)
        raise
    return replace(prompt, dropped_turns=dropped_turns, dropped_tokens=dropped_tokens), before


def turns_to_drop(starts: Sequence[int], n_tokens: int, n_ctx: int, least_free: int) -> int:
    """Return how many of the oldest turns should go, at most all but the last; ``starts``: where each begins."""
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
    for question, reply, ids in turns:
        if question.results:
            chat.add_results(question.results)
            chat.prompt_ids()
        else:
            chat.add_user(question.content)
        if reply is not None:
            chat.add_reply(list(ids), reply.raw, reply.calls, reply.content)


def _take_turns(chat: ChatPrompt) -> list[tuple[Message, Message | None, Sequence[int]]]:
    turns: list[tuple[Message, Message | None, Sequence[int]]] = []
    while chat.messages and chat.messages[-1].role != "system":
        reply: Message | None = None
        ids: Sequence[int] = ()
        if chat.messages[-1].role == "assistant":
            reply, ids = chat.messages[-1], chat.take_reply().ids
        turns.append((chat.messages[-1], reply, ids))
        chat.rewind(len(chat.messages) - 1)
    return turns[::-1]

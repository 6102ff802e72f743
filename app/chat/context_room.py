"""Room in a context that is full: which of the oldest turns go, so that the next one fits. In the engine's thread.

Whole turns go, and the system prompt stays. A quarter of the context is made free where that is possible, so that this
does not happen with every message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

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
    """A prompt does not fit, whatever goes.

    Attributes:
        needed_tokens: of the context, for the prompt alone with the least of a reply.
    """

    def __init__(self, needed_tokens: int) -> None:
        super().__init__(f"{needed_tokens} tokens are needed")
        self.needed_tokens = needed_tokens


@record
class Prompt:
    """Tokens to read before a reply.

    Attributes:
        ids: up to where the reply begins.
        begun: ids of the reply's beginning, where one goes on.
    """

    ids: list[int]
    begun: Sequence[int] = ()

    @property
    def n_tokens(self) -> int:
        """All that must be in the cache before the next token."""
        return len(self.ids) + len(self.begun)


@record
class Fitted:
    """A prompt that fits.

    Attributes:
        before: the conversation without this turn, and without what had to go for it.
        dropped_turns, dropped_tokens: what had to go.
    """

    prompt: Prompt
    before: SavedChat
    dropped_turns: int = 0
    dropped_tokens: int = 0


def reply_room(n_ctx: int, is_continued: bool = False, least_tokens: int = MIN_REPLY_TOKENS) -> int:
    """Return how many tokens must be free for a reply, or for more of one."""
    return 1 if is_continued else max(1, min(least_tokens, n_ctx // 8))


def make_room(chat: ChatPrompt, n_ctx: int, least_free: int, build: Callable[[int], Prompt]) -> Fitted:
    """Build a prompt; the oldest whole turns go for good until it fits.

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
        while (prompt := build(dropped_turns)).n_tokens + least_free > n_ctx:
            starts = chat.turn_starts()
            alone = tokens_alone(starts, prompt.n_tokens) + least_free
            n_turns = turns_to_drop(starts, prompt.n_tokens, n_ctx, least_free)
            if alone > n_ctx or not n_turns:
                raise NoRoomError(alone)
            dropped_turns, dropped_tokens = dropped_turns + n_turns, dropped_tokens + starts[n_turns] - starts[0]
            chat.restore(before)
            drop_turns(chat, n_turns)
            before = chat.save()
    except BaseException:
        chat.restore(saved)
        raise
    return Fitted(prompt, before, dropped_turns, dropped_tokens)


def tokens_alone(starts: Sequence[int], n_tokens: int) -> int:
    """Return how many of a prompt's tokens would be left if all turns but the last went.

    Args:
        starts: where each turn begins, the newest last.
    """
    return n_tokens - (starts[-1] - starts[0]) if starts else n_tokens


def turns_to_drop(starts: Sequence[int], n_tokens: int, n_ctx: int, least_free: int) -> int:
    """Return how many of the oldest turns should go; at most all but the last.

    Args:
        starts: where each turn begins, the newest last.
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

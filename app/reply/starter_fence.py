"""The starter model's fence: it may write only what training has for a question, and else that it
does not know.

A model of four megabytes answers anything, mostly wrongly. So its last question is looked for among
those that it was trained on (``starter/fence.json``, made of its facts by
``python -m starter.make_fence``), and its reply is held to the answers that training has for it;
where there are several, the model chooses. Other models are not touched, nor are replies in a form,
texts that are no conversation, and replies that the user has edited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from app.program import paths
from app.reply.known_questions import (
    MOST_CHARS,
    MOST_MESSAGES,
    OF_ONESELF,
    DialogueFacts,
    KnownQuestions,
    folded,
)

if TYPE_CHECKING:
    import numpy as np

    from engine import Model
    from engine.prompt.chat_prompt import ChatPrompt
    from engine.tokenizer import Tokenizer

_MOST_SEARCHED_CHARS = 2000
"""Characters of a message's beginning and end that are looked through for signs of need."""


def fence_of(
    model: Model, chat: ChatPrompt | None, begun: Sequence[int] = ()
) -> AllowedTexts | None:
    """Return what holds the next reply of the starter model to what it knows.

    Args:
        chat: ends with the question; None for a text that is no conversation.
        begun: the beginning of a reply that is continued.

    Returns:
        None where what was begun is the beginning of none of the answers.
    """
    if chat is None:
        return None
    texts = answers_to([message.content for message in chat.messages if message.role == "user"])
    answers = [model.tokenizer.encode(text, bos=False, special=False) for text in texts]
    left = [ids[len(begun) :] for ids in answers if ids[: len(begun)] == list(begun)]
    if left:
        return AllowedTexts(left, model.tokenizer)
    return None


def answers_to(said: Sequence[str]) -> list[str]:
    """Return what the starter model may answer to the last of a user's messages: at least one
    text."""
    fence = _fence()
    talked = DialogueFacts()
    for earlier in said[-MOST_MESSAGES:-1]:
        fence.known.answers(earlier, talked)
    if said:
        asked = said[-1]
    else:
        asked = ""
    urgent = fence.urgent(asked)
    if urgent:
        return urgent
    known, is_sure = fence.known.answers(asked, talked)
    if known and is_sure:
        return known
    return [*known, *fence.declined(asked)]


def is_declined(reply: str) -> bool:
    """Whether the starter model has said that it does not know, or cannot: a larger one may."""
    return reply.strip() in _fence().beyond


class AllowedTexts:
    """Holds a reply to one of some texts: a ``Constraint`` of the engine."""

    def __init__(self, texts: Iterable[Sequence[int]], tokenizer: Tokenizer) -> None:
        self._left = [list(ids) for ids in texts]
        self._n_vocab = tokenizer.vocab_size
        self._ends = sorted(tokenizer.end_ids)

    @property
    def is_over(self) -> bool:
        """Whether nothing but an end may follow."""
        return not any(self._left)

    def forced(self) -> list[int]:
        """Return the tokens that all texts go on with."""
        shared = []
        for column in zip(*self._left, strict=False):
            if len(set(column)) > 1:
                break
            shared.append(column[0])
        return shared

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each token whether a text goes on with it."""
        import numpy as np  # the engine has by now

        allowed = np.zeros(self._n_vocab, np.bool_)
        for ids in self._left:
            allowed[ids[0] if ids else self._ends] = True
        return allowed

    def accept(self, token_id: int) -> None:
        """The reply goes on with a token."""
        self._left = [ids[1:] for ids in self._left if ids and ids[0] == token_id]

    def close(self) -> None:
        """Nothing is held."""


class _Fence:
    """The questions that are known, and what is said to others.

    ``given``: as ``starter.make_fence`` writes it.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.known = KnownQuestions(given)
        self._unknown, self._task, self._noise, self._sorry, self._harm = (
            given[name] for name in _DECLINED
        )
        self.beyond = self._unknown, self._task
        self._sorrow, self._harmful = (
            re.compile("|".join(rf"\b(?:{text})\b" for text in given[name]))
            for name in ("sorrow", "harmful")
        )
        self._crisis = [(re.compile("|".join(one["words"])), one["say"]) for one in given["crisis"]]

    def urgent(self, text: str) -> list[str]:
        """Return what is said to somebody in despair; nothing to others."""
        ends = folded(
            text[:_MOST_SEARCHED_CHARS] + " " + text[_MOST_SEARCHED_CHARS:][-_MOST_SEARCHED_CHARS:]
        )
        return [say for words, say in self._crisis if words.search(ends)][:1]

    def declined(self, text: str) -> list[str]:
        """Return how the model says that it does not know, or cannot."""
        beginning = folded(text[:_MOST_SEARCHED_CHARS])
        if self._harmful.search(beginning):
            return [self._harm]
        if self._sorrow.search(beginning) and len(text) <= 2 * MOST_CHARS:
            return [self._sorry]
        if not any(char.isalnum() for char in beginning):
            return [self._noise]
        if OF_ONESELF.search(beginning):
            return [self._task]
        return [self._unknown, self._task]


_DECLINED = ("unknown", "task", "noise", "sorry", "harm")


@cache
def _fence() -> _Fence:
    return _Fence(json.loads((paths.bundled("starter") / "fence.json").read_text(encoding="utf-8")))

"""Fence of the starter model: it may give only the answers that training has for a question, or
else say that it does not know.

A model of four megabytes answers everything, mostly wrongly. So its last question is looked up
among those of its training (``starter/fence.json``, made by ``python -m starter.make_fence``), and
its reply is limited to the answers for it. If there are several, the model chooses. Other models
are not limited, nor are replies in a form, texts without a conversation, and replies that the user
has edited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from app.program import paths
from app.reply.known_questions import (
    MAX_CHARS,
    MAX_MESSAGES,
    SELF_WORDS,
    DialogueFacts,
    KnownQuestions,
    normalize,
)

if TYPE_CHECKING:
    import numpy as np

    from engine import Model
    from engine.prompt.chat_prompt import ChatPrompt
    from engine.tokenizer import Tokenizer

_MAX_SEARCHED_CHARS = 2000
"""Number of characters at the beginning and at the end of a message that are searched for signs of
distress."""


def fence_of(
    model: Model, chat: ChatPrompt | None, prefix_ids: Sequence[int] = ()
) -> AllowedTexts | None:
    """Return the constraint for the next reply of the starter model.

    Args:
        model: The starter model.
        chat: Conversation that ends with the question; None for a text without a conversation.
        prefix_ids: Tokens of the beginning of a continued reply.

    Returns:
        The constraint; None if no answer begins with the prefix.
    """
    if chat is None:
        return None
    texts = answers_to([message.content for message in chat.messages if message.role == "user"])
    answers = [model.tokenizer.encode(text, bos=False, special=False) for text in texts]
    n_prefix = len(prefix_ids)
    remaining = [ids[n_prefix:] for ids in answers if ids[:n_prefix] == list(prefix_ids)]
    if not remaining:
        return None
    return AllowedTexts(remaining, model.tokenizer)


def answers_to(user_texts: Sequence[str]) -> list[str]:
    """Return the answers that the starter model may give to the last message of a user.

    Args:
        user_texts: Texts of the user's messages.

    Returns:
        At least one text.
    """
    fence = _fence()
    facts = DialogueFacts()
    for text in user_texts[-MAX_MESSAGES:-1]:
        fence.known.answers(text, facts)
    question = user_texts[-1] if user_texts else ""

    urgent = fence.urgent(question)
    if urgent:
        return urgent
    answers, is_exact = fence.known.answers(question, facts)
    if answers and is_exact:
        return answers
    return [*answers, *fence.declining(question)]


def is_declined(reply: str) -> bool:
    """Whether the starter model says that it does not know or cannot help. A larger model may."""
    return reply.strip() in _fence().declined_texts


class AllowedTexts:
    """Constraint of the engine that limits a reply to one of several texts."""

    def __init__(self, texts: Iterable[Sequence[int]], tokenizer: Tokenizer) -> None:
        self._remaining = [list(ids) for ids in texts]
        self._n_vocab = tokenizer.vocab_size
        self._end_ids = sorted(tokenizer.end_ids)

    @property
    def is_over(self) -> bool:
        """Whether only an end token may follow."""
        return not any(self._remaining)

    def forced(self) -> list[int]:
        """Return the tokens that continue all texts."""
        shared = []
        for ids in zip(*self._remaining, strict=False):
            if len(set(ids)) > 1:
                break
            shared.append(ids[0])
        return shared

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each token of the vocabulary whether it continues a text."""
        import numpy as np  # The engine has imported it by now.

        allowed = np.zeros(self._n_vocab, np.bool_)
        for ids in self._remaining:
            allowed[ids[0] if ids else self._end_ids] = True
        return allowed

    def accept(self, token_id: int) -> None:
        """Continue the reply with a token."""
        self._remaining = [ids[1:] for ids in self._remaining if ids and ids[0] == token_id]

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class _Fence:
    """Known questions, and what the model says to others.

    Args:
        data: Data that ``starter.make_fence`` writes.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.known = KnownQuestions(data)
        self._unknown_text: str = data["unknown"]
        self._task_text: str = data["task"]
        self._noise_text: str = data["noise"]
        self._sorry_text: str = data["sorry"]
        self._harm_text: str = data["harm"]
        self.declined_texts = (self._unknown_text, self._task_text)
        self._sorrow_pattern = _words_pattern(data["sorrow"])
        self._harm_pattern = _words_pattern(data["harmful"])
        self._crises = [
            (re.compile("|".join(crisis["words"])), crisis["say"]) for crisis in data["crisis"]
        ]

    def urgent(self, text: str) -> list[str]:
        """Return the answer to somebody in despair; empty for other messages."""
        beginning = text[:_MAX_SEARCHED_CHARS]
        end = text[_MAX_SEARCHED_CHARS:][-_MAX_SEARCHED_CHARS:]
        searched = normalize(f"{beginning} {end}")
        for pattern, answer in self._crises:
            if pattern.search(searched):
                return [answer]
        return []

    def declining(self, text: str) -> list[str]:
        """Return the answers that say that the model does not know or cannot help."""
        beginning = normalize(text[:_MAX_SEARCHED_CHARS])
        if self._harm_pattern.search(beginning):
            return [self._harm_text]
        if self._sorrow_pattern.search(beginning) and len(text) <= 2 * MAX_CHARS:
            return [self._sorry_text]
        if not any(char.isalnum() for char in beginning):
            return [self._noise_text]
        if SELF_WORDS.search(beginning):
            return [self._task_text]
        return [self._unknown_text, self._task_text]


def _words_pattern(expressions: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(rf"\b(?:{expression})\b" for expression in expressions))


@cache
def _fence() -> _Fence:
    return _Fence(json.loads((paths.bundled("starter") / "fence.json").read_text(encoding="utf-8")))

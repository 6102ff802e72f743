"""A complete request for a reply: the messages, and the reply that continues.

The system prompt may name the day on which the conversation began. It stays the same for as long as
the conversation is continued, so that its tokens stay in the KV cache and in saved states. A
conversation that begins with a document names no date: documents are read in advance, before it is
known on which day they are asked about.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from app.conversations.conversation import SYSTEM, TOOL, USER, PromptMessage
from app.conversations.session_options import SessionOptions
from app.program.settings import AUTO, Settings
from app.reply.thinking import Thinking
from app.text.record import record

NO_DATE = "off"
"""Value of ``date_in_prompt`` with which no date is named."""
HELPFUL = "You are a helpful assistant."
"""System prompt before a date if the conversation has none. Many templates have this one by
themselves, and leave it out for another."""
_FILE = re.compile(r"[^\n]{1,200}:\n`{3,}\n")
"""Beginning of a message with the text of a file (``app.documents.text_file``)."""


@record
class Continuation:
    """A reply that continues."""

    reply: PromptMessage
    thinking: Thinking | None = None
    """Thinking of the reply; None if it has none."""
    edited: str | None = None
    """Edited answer, or edited thinking if there is no answer yet; None if it is unchanged."""
    is_loop: bool = False
    """Whether the reply repeated itself; penalties then prevent repetition."""


@record
class Request:
    """A request to a model. Without a continuation the model may read it ahead."""

    messages: tuple[PromptMessage, ...] = ()
    """Messages, oldest first; the first may be a system prompt, the last is the user's or has
    results of tools."""
    continuation: Continuation | None = None
    """Reply that continues; None for a new reply."""
    plain: str | None = None
    """Text to continue in place of a conversation, without a template; None for a
    conversation."""
    n_answers: int = 1
    """Number of replies to write together, from which the user chooses."""
    may_call: bool = True
    """Whether the reply may call tools. After results of tools the prompt describes them in either
    case."""
    sent_s: float | None = None
    """Time at which the user sent the message, if it had to wait; None if it did not."""
    options: SessionOptions = SessionOptions()
    """Choices that hold for this request."""

    @property
    def has_results(self) -> bool:
        """Whether the last message has results of tools."""
        return bool(self.messages) and self.messages[-1].role == TOOL

    @property
    def _n_system(self) -> int:
        return int(bool(self.messages) and self.messages[0].role == SYSTEM)

    @property
    def n_turns(self) -> int:
        """Number of questions that have a reply."""
        return (len(self.messages) - self._n_system) // 2

    def only_system(self) -> Request:
        """Return a request with the same system prompt and no other message."""
        return Request(self.messages[: self._n_system], options=self.options)

    def without(self, n_turns: int) -> Request:
        """Return this request without its oldest turns; the system prompt stays."""
        n_system = self._n_system
        remaining = self.messages[n_system + 2 * n_turns :]
        return replace(self, messages=(*self.messages[:n_system], *remaining))


def date_to_name(settings: Settings, is_chat: bool = True) -> str:
    """Return the date that a conversation names if it begins now: ISO; empty for none.

    Args:
        is_chat: whether a user chats; the prompts of other commands are their own unless the
            setting is "on".
    """
    if settings.date_in_prompt == NO_DATE or not (is_chat or settings.date_in_prompt == "on"):
        return ""
    return date.today().isoformat()


def dated(messages: Sequence[PromptMessage], day: str) -> tuple[PromptMessage, ...]:
    """Return messages whose system prompt names a date.

    Args:
        messages: messages of a request.
        day: the date; empty for none.
    """
    first = next((message for message in messages if message.role == USER), None)
    if not day or (first is not None and _FILE.match(first.text)):
        return tuple(messages)
    if messages and messages[0].role == SYSTEM:
        return replace(messages[0], date=day), *messages[1:]
    return PromptMessage(SYSTEM, "", date=day), *messages


def named_dates(
    messages: Sequence[PromptMessage], setting: str, has_own_date: bool
) -> Sequence[PromptMessage]:
    """Return messages with the date as a part of the system prompt's text.

    Args:
        messages: messages of a request.
        setting: the setting ``date_in_prompt``.
        has_own_date: whether the model gets the date, or a date, in another way.
    """
    if not messages or messages[0].role != SYSTEM or not messages[0].date:
        return messages
    system = messages[0]
    text = system.text
    if setting != NO_DATE and not (setting == AUTO and has_own_date):
        text = f"{text or HELPFUL}\n\n{_sentence(date.fromisoformat(system.date))}"
    if not text:
        return messages[1:]
    return PromptMessage(SYSTEM, text), *messages[1:]


def _sentence(day: date) -> str:
    return f"Today is {day:%A}, {day.day} {day:%B %Y}."

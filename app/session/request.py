"""A complete request for a reply: the messages, and the reply that continues."""

from __future__ import annotations

from dataclasses import replace

from app.conversations.conversation import SYSTEM, TOOL, PromptMessage
from app.conversations.session_options import SessionOptions
from app.reply.thinking import Thinking
from app.text.record import record


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

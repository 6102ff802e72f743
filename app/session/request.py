"""A whole request for a reply: what was said, and the beginning of a reply that goes on."""

from __future__ import annotations

from dataclasses import replace

from app.conversations.conversation import SYSTEM, TOOL, PromptMessage
from app.reply.thinking import Thinking
from app.text.record import record


@record
class Continuation:
    """A reply that goes on."""

    reply: PromptMessage
    thinking: Thinking | None = None
    """The thinking in it."""
    edited: str | None = None
    """What the user made of its answer, or of its thinking where there is no answer yet; None: it
    is as it was."""
    is_loop: bool = False
    """Whether it repeated itself: what follows is kept from repetition."""


@record
class Request:
    """What a model is asked. Without a reply, what it may read ahead."""

    messages: tuple[PromptMessage, ...] = ()
    """The conversation, oldest first: a system prompt may be the first, a message of the user or of
    tools is the last.
    """
    continuation: Continuation | None = None
    """The reply that goes on; None for a new one."""
    plain: str | None = None
    """A text to continue in place of a conversation; no template is applied."""
    n_answers: int = 1
    """Replies that are written together, for the user to choose one."""
    sent_s: float | None = None
    """When the user sent it, on the clock of the bridge, if it had to wait."""
    adapters: tuple[str, ...] = ()
    """Adapters that change the model, as ``app.session.adapters`` names them."""

    @property
    def is_round(self) -> bool:
        """Whether tools have spoken last."""
        return bool(self.messages) and self.messages[-1].role == TOOL

    @property
    def _n_system(self) -> int:
        return int(bool(self.messages) and self.messages[0].role == SYSTEM)

    @property
    def n_turns(self) -> int:
        """Number of questions that have a reply."""
        return (len(self.messages) - self._n_system) // 2

    def with_nothing_said(self) -> Request:
        """Return a request with the same system prompt, in which nothing was said yet."""
        return Request(self.messages[: self._n_system], adapters=self.adapters)

    def without(self, n_turns: int) -> Request:
        """Return this without the oldest turns; the system prompt stays."""
        n_system = self._n_system
        return replace(
            self, messages=(*self.messages[:n_system], *self.messages[n_system + 2 * n_turns :])
        )

"""State of one running turn, and the snapshot that undoes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from app.backend.reply_text import ReplyCollector
from app.conversations.branches import branches_of
from app.conversations.conversation import Branch, ChatMessage, Conversation, Ending, Role, Summary
from app.reply.thinking import Thinking
from app.session import events
from app.session.request import Continuation
from app.text.record import record


class Phase(Enum):
    """Activity that must end before the next turn; ``FREE`` if there is none."""

    FREE = "free"
    LOADING = "loading a model"
    REREADING = "reading the conversation again"
    ANSWERING = "answering"
    CALLING = "calling tools"
    TUNING = "tuning"
    ADAPTING = "changing adapters"
    COMPACTING = "summarizing"


@record
class Snapshot:
    """Parts of a conversation that a turn changes."""

    messages: tuple[ChatMessage, ...]
    n_dropped: int
    has_interrupted_turn: bool
    summaries: tuple[Summary, ...] = ()

    @classmethod
    def of(cls, conversation: Conversation) -> Snapshot:
        """Return a snapshot of a conversation."""
        return cls(
            tuple(conversation.messages),
            conversation.n_dropped,
            conversation.has_interrupted_turn,
            conversation.summaries,
        )

    def restore(self, conversation: Conversation) -> None:
        """Undo all changes since the snapshot, except that turns left the context."""
        conversation.messages[:] = self.messages
        conversation.n_dropped = max(self.n_dropped, conversation.n_dropped)
        conversation.has_interrupted_turn = self.has_interrupted_turn
        conversation.summaries = self.summaries


@dataclass
class AnswerSet:
    """Several replies to one message that are written together."""

    n: int
    model: str
    """Name of the model that writes the replies."""
    compared: ChatMessage | None = None
    """Complete reply that is the first of them; None if all are new."""
    finished: dict[int, events.GenerationFinished] = field(default_factory=dict)
    """Final events by index of the reply; a reply that never began has none."""

    def __post_init__(self) -> None:
        self.replies = [ReplyCollector() for _ in range(self.n)]

    def add(self, index: int, event: events.Event) -> None:
        """Take in an event of one reply."""
        match event:
            case (
                events.TextGenerated()
                | events.ThoughtGenerated()
                | events.ThinkingFinished()
                | events.ReplyReopened()
            ):
                self.replies[index].take(event)
            case events.GenerationFinished():
                self.finished[index] = event
            case events.GenerationFailed(partial_reply=partial) if partial is not None:
                self.finished[index] = partial

    def message(
        self, older: Sequence[Branch], ids: tuple[int, ...] = (), raw: str = ""
    ) -> ChatMessage | None:
        """Return the first reply with the others as alternatives, as far as they are written.

        None before the first has begun.

        Args:
            older: branches that stay next to the replies.
            ids: tokens of the first reply, while it is written.
            raw: text of these tokens.
        """
        begun = [
            index
            for index, reply in enumerate(self.replies)
            if self._is_compared(index) or index in self.finished or reply.text or reply.thought
        ]
        if not begun:
            return None
        messages = [self._message_of(index) for index in begun]
        message = messages[0]
        if message.ending is Ending.INTERRUPTED and begun[0] == 0 and self.compared is None:
            message.ids = ids
            message.raw = raw
        message.alternatives = (*older, *((other,) for other in messages[1:]))
        message.n_older = len(older)
        return message

    def _is_compared(self, index: int) -> bool:
        return index == 0 and self.compared is not None

    def _message_of(self, index: int) -> ChatMessage:
        if index == 0 and self.compared is not None:
            return replace(self.compared, alternatives=(), n_older=0)
        reply = self.replies[index]
        if index in self.finished:
            return reply_message(reply, self.finished[index], self.model)
        message = ChatMessage(
            Role.ASSISTANT, reply.text, Ending.INTERRUPTED, model=self.model, raw=reply.text
        )
        if reply.thought.strip():
            message.thinking = Thinking(reply.thought, is_closed=bool(reply.text))
        return message


@dataclass
class Running:
    """A turn from sending its message to the end of its reply."""

    snapshot: Snapshot
    """The conversation before the turn."""
    sent_text: str | None = None
    """Text that the user sent; None if the question was in the conversation before."""
    replaced: Branch = ()
    """Messages that the turn replaces; empty for a new question."""
    continuation: Continuation | None = None
    """Reply that the turn continues; None if it begins a reply."""
    joined: ChatMessage | None = None
    """Unanswered message of an earlier run that was sent with this one."""
    has_pictures: bool = False
    """Whether the sent message has pictures."""
    compared: ChatMessage | None = None
    """Reply that another model's is written next to; None for a turn of the open model."""
    answers: AnswerSet | None = None
    """Replies that are written together; None if there is only one."""
    may_call: bool = True
    """Whether the reply may call tools."""
    reply: ReplyCollector = field(default_factory=ReplyCollector)

    @property
    def returns_pictures(self) -> bool:
        """Whether the user gets the message back if it has no reply: it has pictures, and replaces
        no other message."""
        return self.has_pictures and not self.replaced

    def is_lost(self, done: events.GenerationFinished) -> bool:
        """Whether the reply is empty although the model could answer or call a tool."""
        is_empty = not (self.reply.text.strip() or self.reply.thinking or done.calls)
        is_new = self.continuation is None and self.answers is None
        return is_empty and is_new and done.could_call and done.ending is Ending.COMPLETE

    def repeat_without_tools(self) -> None:
        """Begin the reply again; it may not call tools."""
        self.reply = ReplyCollector()
        self.may_call = False

    @property
    def is_edited(self) -> bool:
        """Whether the reply continues from text that the user changed."""
        return self.continuation is not None and self.continuation.edited is not None

    @property
    def continued(self) -> ChatMessage | None:
        """Reply that goes on unchanged; None if there is none."""
        if self.continuation is None or self.is_edited:
            return None
        return self.replaced[0]

    @property
    def alternatives(self) -> tuple[Branch, ...]:
        """Branches that stay next to the reply, oldest first."""
        if self.compared is not None:
            return self.compared.alternatives
        if self.continued is not None:
            return self.continued.alternatives
        if self.replaced and self.replaced[0].role is Role.ASSISTANT:
            return branches_of(self.replaced)
        return ()


def reply_message(
    reply: ReplyCollector, done: events.GenerationFinished, model: str
) -> ChatMessage:
    """Return the message of a reply that has ended.

    Args:
        model: name of the model that wrote it.
    """
    return ChatMessage(
        Role.ASSISTANT,
        reply.text,
        done.ending,
        done.figures,
        reply.thinking,
        ids=done.ids,
        raw=done.raw,
        model=model,
    )

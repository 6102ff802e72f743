"""Messages of one conversation, with the speaker and how each reply came about."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import takewhile, zip_longest

from app.conversations.server_fields import ServerFields
from app.documents.text_file import sources_of
from app.reply.thinking import Thinking
from app.text.record import record
from engine.prompt.tools.calls import CallResult, ToolCall


class Role(str, Enum):
    """Who speaks."""

    USER = "user"
    ASSISTANT = "assistant"


class Ending(str, Enum):
    """Why a reply ended where it did."""

    COMPLETE = "complete"
    STOPPED = "stopped"
    LENGTH = "length"
    """It reached the limit on tokens per reply."""
    CONTEXT = "context"
    REPEATED = "repeated"
    """It repeated itself; one copy was kept."""
    FAILED = "failed"
    """The engine gave up in the middle."""
    INTERRUPTED = "interrupted"
    """The program ended in the middle."""


@record
class ReplyFigures:
    """Cost of one reply, measured on a monotonic clock."""

    tokens: int
    first_token_s: float | None
    """Seconds from the start of the turn to the first token; None where there was none."""
    decode_tps: float | None
    """Tokens per second after the first one; None below two tokens."""
    prompt_tokens: int
    """Tokens of the prompt that had to be computed."""
    reused_tokens: int
    """Tokens of the prompt that the cache still held."""
    guessed_tokens: int = 0
    """Tokens that were guessed from the conversation and computed together with others."""

    @property
    def duration_s(self) -> float:
        """How long the reply took, from the start of the turn to its last token."""
        return (self.first_token_s or 0.0) + (
            (self.tokens - 1) / self.decode_tps if self.decode_tps else 0.0
        )

    def continued_by(self, more: ReplyFigures) -> ReplyFigures:
        """Return the figures of a reply that was stopped with these and went on with ``more``."""
        seconds = [
            (figures.tokens - 1) / figures.decode_tps
            for figures in (self, more)
            if figures.decode_tps is not None
        ]
        counted = sum(
            figures.tokens - 1 for figures in (self, more) if figures.decode_tps is not None
        )
        return replace(
            self,
            tokens=self.tokens + more.tokens,
            decode_tps=counted / sum(seconds) if sum(seconds) > 0 else None,
            guessed_tokens=self.guessed_tokens + more.guessed_tokens,
        )


@dataclass
class ChatMessage:
    """One message, as it is in the transcript."""

    role: Role
    text: str
    """Text of the message; of a reply without its thinking."""
    ending: Ending = Ending.COMPLETE
    figures: ReplyFigures | None = None
    thinking: Thinking | None = None
    is_edited: bool = False
    """Whether the user changed what the model had written."""
    folded: str = ""
    """Text of a user's message with large pastes folded; "" where nothing is folded."""
    ids: tuple[int, ...] = ()
    """A reply's tokens as they were generated; () where they are not known."""
    raw: str = ""
    """Text of the ids, uncleaned and with the thinking; never for a terminal."""
    calls: tuple[ToolCall, ...] = ()
    """Of tools, that a reply ends with."""
    calls_at: int = 0
    """Where in ``raw`` they begin."""
    results: tuple[CallResult, ...] = ()
    """Of the calls before, where tools speak in place of the user; ``text`` has them as they may be
    read."""
    server_fields: ServerFields | None = None
    """Fields that the server which computed the reply needs back; None if it needs none."""
    sources: tuple[str, ...] = ()
    """Of a reply: the passages that its question brought along; known from the question, and not
    saved."""
    alternatives: tuple[ChatMessage, ...] = ()
    """Of a reply: other answers to the same question, that the user may choose in its place."""
    is_missing: bool = False
    """Whether all that is known is that there was one: its file is damaged."""

    @property
    def editable_text(self) -> str:
        """Text that a user edits: the answer, or the thinking where no answer has begun."""
        if self.thinking is not None and not self.thinking.is_closed:
            return self.thinking.text
        return self.text


MAX_ALTERNATIVES = 8
"""Limit on the answers that are kept next to a reply."""
SYSTEM = "system"
USER = "user"
ASSISTANT = "assistant"
TOOL = "tool"
"""Roles of what is said in a request."""


@record
class PromptMessage:
    """A message of a request to a model."""

    role: str
    """``SYSTEM``, ``USER``, ``ASSISTANT`` or ``TOOL``."""
    text: str
    """Of a reply: without its thinking and its calls."""
    calls: tuple[ToolCall, ...] = ()
    """With which a reply ends, where results follow."""
    results: tuple[CallResult, ...] = ()
    """Of the calls before, where tools speak."""
    ids: tuple[int, ...] = ()
    """Of a reply, as they were generated; () where they are not known."""
    raw: str = ""
    """Text of the ids, uncleaned, with the thinking and the calls."""
    calls_at: int = 0
    """Where in ``raw`` the calls begin."""
    server_fields: ServerFields | None = None
    """Fields that the server which computed the reply needs back; None if it needs none."""


@dataclass
class Conversation:
    """A system prompt and the messages after it, oldest first; the last one may be a user's without
    a reply."""

    system: str | None = None
    messages: list[ChatMessage] = field(default_factory=list)
    n_dropped: int = 0
    """Messages at the beginning that the context no longer contains; whole turns."""
    is_cut_off: bool = False
    """Whether the program ended before the message at the end was answered: the next one goes with
    it."""
    adapters: tuple[str, ...] = ()
    """Adapters that change the model, as ``app.session.adapters`` names them."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said yet."""
        return not self.messages

    @property
    def awaits_reply(self) -> bool:
        """Whether the last message is a user's."""
        return bool(self.messages) and self.messages[-1].role is Role.USER

    @property
    def last_reply(self) -> ChatMessage | None:
        """The newest reply, or None."""
        return next((m for m in reversed(self.messages) if m.role is Role.ASSISTANT), None)

    def prompt_messages(self, with_unanswered: bool = True) -> tuple[PromptMessage, ...]:
        """Return the system prompt and what the context contains, as a request has it."""
        messages = self.messages[self.n_dropped :]
        if not with_unanswered and messages and messages[-1].role is Role.USER:
            messages.pop()
        system = (PromptMessage(SYSTEM, self.system),) if self.system else ()
        return (
            *system,
            *(prompt_message_of(one, after) for one, after in zip_longest(messages, messages[1:])),
        )

    def drop_gaps(self) -> None:
        """Let the context begin after the last turn of which something is missing."""
        gaps = [index for index, message in enumerate(self.messages) if message.is_missing]
        if gaps:
            self.n_dropped = max(self.n_dropped, gaps[-1] // 2 * 2 + 2)

    def add_user(self, text: str, folded: str = "") -> ChatMessage:
        """Append what the user said in place of an unanswered message: most chat templates refuse
        two in a row."""
        if self.awaits_reply:
            self.messages.pop()
        self.is_cut_off = False
        message = ChatMessage(Role.USER, text, folded=folded)
        self.messages.append(message)
        return message

    def add_results(self, results: tuple[CallResult, ...]) -> ChatMessage:
        """Append what came of the calls of the last reply.

        Raises ValueError: it has none, or others.
        """
        if self.messages:
            last = self.messages[-1]
        else:
            last = None
        if last is None or [call.call_id for call in last.calls] != [
            one.call_id for one in results
        ]:
            raise ValueError("results need the calls that they answer")
        text = "\n\n".join(f"{one.name}: {one.text}" for one in results)
        self.messages.append(ChatMessage(Role.USER, text, results=results))
        return self.messages[-1]

    @property
    def user_text(self) -> str:
        """What the user said in the part that the context contains, files included."""
        return "\n\n".join(
            one.text for one in self.messages[self.n_dropped :] if one.role is Role.USER
        )

    @property
    def unanswered_message(self) -> ChatMessage | None:
        """The message that the end of the program left without a reply, and that the next one goes
        with."""
        is_said = self.is_cut_off and self.awaits_reply and not self.messages[-1].results
        if is_said:
            return self.messages[-1]
        return None

    @property
    def n_rounds(self) -> int:
        """How often in a row tools have spoken since the user did."""
        questions = (message for message in reversed(self.messages) if message.role is Role.USER)
        return sum(1 for _ in takewhile(lambda asked: asked.results, questions))

    def join_unanswered(self, text: str, folded: str = "") -> tuple[str, str]:
        """Return what is said with a new message, and that with large pastes folded; "" where there
        are none."""
        before = self.unanswered_message
        if before is None:
            return text, folded
        has_folds = before.folded or folded
        if has_folds:
            folded = f"{before.folded or before.text}\n\n{folded or text}"
        else:
            folded = ""
        return f"{before.text}\n\n{text}", folded

    def add_reply(
        self,
        text: str,
        ending: Ending,
        figures: ReplyFigures | None,
        thinking: Thinking | None = None,
    ) -> ChatMessage:
        """Append a reply and return it.

        Raises ValueError: the last message is not a user's.
        """
        return self.append_reply(ChatMessage(Role.ASSISTANT, text, ending, figures, thinking))

    def append_reply(self, message: ChatMessage) -> ChatMessage:
        """Append the message of a reply and return it.

        Raises ValueError: the last message is not a user's.
        """
        if not self.awaits_reply:
            raise ValueError("a reply needs a message it answers")
        message.sources = sources_of(self.messages[-1].text)
        self.messages.append(message)
        return message

    def set_sources(self) -> None:
        """Find the sources of all replies, of which none was found yet."""
        for question, reply in zip(self.messages[::2], self.messages[1::2], strict=False):
            reply.sources = sources_of(question.text)

    def take_back_user(self) -> str:
        """Remove the unanswered message at the end and return its text."""
        if not self.awaits_reply:
            raise ValueError("the last message has its answer")
        return self.messages.pop().text

    def drop_reply(self) -> ChatMessage:
        """Remove the reply at the end, so that its question can be answered again, and return
        it."""
        if not self.messages or self.messages[-1].role is not Role.ASSISTANT:
            raise ValueError("the last message is not a reply")
        return self.messages.pop()

    def cut(self, n_messages: int) -> list[ChatMessage]:
        """Keep the first messages only and return the others."""
        cut = self.messages[n_messages:]
        del self.messages[n_messages:]
        self.n_dropped = min(self.n_dropped, n_messages)
        return cut


def prompt_message_of(message: ChatMessage, after: ChatMessage | None = None) -> PromptMessage:
    """Return a message as a request has it; ``after``: the one that follows.

    Templates refuse calls without results: a reply with such calls is the text that the model
    wrote.
    """
    if message.role is Role.USER:
        return PromptMessage(
            TOOL if message.results else USER, message.text, results=message.results
        )
    if after is not None and after.results:
        calls = message.calls
    else:
        calls = ()
    is_whole = calls == message.calls
    if is_whole:
        text = message.text
    else:
        text = message.raw
    if is_whole and not message.is_edited:
        fields = message.server_fields
    else:
        fields = None
    return PromptMessage(
        ASSISTANT, text, calls, (), message.ids, message.raw, message.calls_at, fields
    )

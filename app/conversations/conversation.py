"""Conversations: a system prompt, messages of both sides, and how each reply ended."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import takewhile, zip_longest

from app.conversations.pictures import Picture
from app.conversations.server_fields import ServerFields
from app.conversations.session_options import SessionOptions
from app.documents.pictures import REFERENCE_START
from app.documents.text_file import sources_of
from app.reply.thinking import Thinking
from app.text.guesses import GuessFigures, joined
from app.text.record import record
from engine.prompt.tools.calls import CallResult, ToolCall

MAX_TEXT_BYTES = 4 << 20
"""Limit on a text to send. It may be saved twice: folded, or as the start of a reply."""


def can_be_saved(text: str) -> bool:
    """Whether a text can be saved; a character takes up to 12 bytes in JSON."""
    return 12 * len(text) <= MAX_TEXT_BYTES or len(json.dumps(text)) <= MAX_TEXT_BYTES


class Role(str, Enum):
    """Side that wrote a message."""

    USER = "user"
    ASSISTANT = "assistant"


class Ending(str, Enum):
    """Reason why a reply ended."""

    COMPLETE = "complete"
    STOPPED = "stopped"
    LENGTH = "length"
    """The reply reached the limit on tokens per reply."""
    CONTEXT = "context"
    REPEATED = "repeated"
    """The reply kept repeating itself; only one copy is in the text."""
    FAILED = "failed"
    """The engine failed during the reply."""
    INTERRUPTED = "interrupted"
    """The program ended during the reply."""


@record
class ReplyFigures:
    """Cost of one reply, measured on a monotonic clock."""

    tokens: int
    first_token_s: float | None
    """Seconds from the start of the turn to the first token; None if there was no token."""
    decode_tps: float | None
    """Tokens per second after the first token; None with fewer than two tokens."""
    prompt_tokens: int
    """Tokens of the prompt that were computed."""
    reused_tokens: int
    """Tokens of the prompt that were in the cache."""
    guessed_tokens: int = 0
    """Tokens that were guessed and accepted."""
    guesses: tuple[GuessFigures, ...] = ()
    """Guesses by kind; empty if none was tried, and in replies of earlier versions."""
    guess_saved_s: float | None = None
    """Seconds that guesses saved, negative if they cost time; None if that is unknown."""

    @property
    def duration_s(self) -> float:
        """Seconds from the start of the turn to the last token."""
        return (self.first_token_s or 0.0) + (
            (self.tokens - 1) / self.decode_tps if self.decode_tps else 0.0
        )

    def continued_by(self, continuation: ReplyFigures) -> ReplyFigures:
        """Return the figures of a stopped reply that was continued with ``continuation``."""
        seconds = [
            (figures.tokens - 1) / figures.decode_tps
            for figures in (self, continuation)
            if figures.decode_tps is not None
        ]
        counted = sum(
            figures.tokens - 1 for figures in (self, continuation) if figures.decode_tps is not None
        )
        return replace(
            self,
            tokens=self.tokens + continuation.tokens,
            decode_tps=counted / sum(seconds) if sum(seconds) > 0 else None,
            guessed_tokens=self.guessed_tokens + continuation.guessed_tokens,
            guesses=joined(self.guesses, continuation.guesses),
            guess_saved_s=_sum_of(self.guess_saved_s, continuation.guess_saved_s),
        )


def _sum_of(*seconds: float | None) -> float | None:
    """Return the sum of what is known; None if nothing is."""
    known = [value for value in seconds if value is not None]
    if not known:
        return None
    return sum(known)


@dataclass
class ChatMessage:
    """A message of the transcript."""

    role: Role
    text: str
    """Text of the message, without thinking."""
    ending: Ending = Ending.COMPLETE
    figures: ReplyFigures | None = None
    thinking: Thinking | None = None
    is_edited: bool = False
    """Whether the user changed the text of this reply."""
    folded: str = ""
    """Text of a user's message with large pastes folded; "" if nothing is folded."""
    pictures: tuple[Picture, ...] = ()
    """Pictures of a user's message, in the order of their marks in the text."""
    ids: tuple[int, ...] = ()
    """Generated token ids of a reply; empty if they are not known."""
    raw: str = ""
    """Uncleaned text of the ids, with thinking. It must never reach a terminal."""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls at the end of a reply."""
    calls_at: int = 0
    """Index of the first call in ``raw``."""
    results: tuple[CallResult, ...] = ()
    """Results of the calls before, if tools speak instead of the user. ``text`` has them in
    words.
    """
    server_fields: ServerFields | None = None
    """Fields that a server needs back with this reply; None if there are none."""
    sources: tuple[str, ...] = ()
    """Sources of a reply: passages sent with its question. They are not saved."""
    alternatives: tuple[Branch, ...] = ()
    """Other branches of the conversation from here, oldest first. Each begins with a message in
    place of this one. See ``branches``."""
    n_older: int = 0
    """Number of alternatives that are older than this message."""
    is_missing: bool = False
    """Whether the message is lost because its row is damaged."""
    model: str = ""
    """Name of the model that wrote the reply; "" if it is not known."""

    @property
    def branch_mark(self) -> str:
        """Number of the shown branch among those from here, such as "‹ 1/2 ›"; "" for only one."""
        if not self.alternatives:
            return ""
        return f"‹ {self.n_older + 1}/{len(self.alternatives) + 1} ›"

    @property
    def editable_text(self) -> str:
        """Text for the user to edit: the thinking while no answer has begun, else the answer."""
        if self.thinking is not None and not self.thinking.is_closed:
            return self.thinking.text
        return self.text


Branch = tuple[ChatMessage, ...]
"""Messages from some place of a conversation to its end; at least one."""
SYSTEM = "system"
USER = "user"
ASSISTANT = "assistant"
TOOL = "tool"
"""Roles of the messages in a request."""


@record
class PromptMessage:
    """A message of a request to a model."""

    role: str
    """Role: ``SYSTEM``, ``USER``, ``ASSISTANT`` or ``TOOL``."""
    text: str
    """Text of the message. A reply's text has neither thinking nor calls."""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls at the end of a reply, if results follow."""
    results: tuple[CallResult, ...] = ()
    """Results of the calls before, if tools speak."""
    ids: tuple[int, ...] = ()
    """Generated token ids of a reply; empty if they are not known."""
    raw: str = ""
    """Uncleaned text of the ids, with thinking and calls."""
    calls_at: int = 0
    """Index of the first call in ``raw``."""
    server_fields: ServerFields | None = None
    """Fields that a server needs back with this reply; None if there are none."""
    pictures: tuple[Picture, ...] = ()
    """Pictures of a user's message, in the order of their marks in the text."""
    date: str = ""
    """Date for a system prompt, if the model's template names none: ISO; empty for none. The text
    may then be empty."""

    @property
    def may_have_pictures(self) -> bool:
        """Whether there are pictures, or the text has what looks like a reference to one."""
        return bool(self.pictures) or REFERENCE_START in self.text


@record
class Summary:
    """A summary that the model reads in place of the oldest messages; these stay saved."""

    text: str
    """Text for the model: its own summary, and the user's words as they were."""
    n_messages: int
    """Number of messages that it replaces."""
    n_dropped_before: int = 0
    """Number of messages that had left the context before."""


SUMMARY_HEADING = "Summary of the beginning of this conversation, which is no longer shown to you:"


@dataclass
class Conversation:
    """A system prompt and messages, oldest first.

    The last message may be a user's message without a reply.
    """

    system: str | None = None
    messages: list[ChatMessage] = field(default_factory=list)
    n_dropped: int = 0
    """Messages at the beginning that left the context, summarized or not; always whole turns."""
    summaries: tuple[Summary, ...] = ()
    """Summaries of the beginning, the shortest beginning first. The last one is in use."""
    has_interrupted_turn: bool = False
    """Whether the program ended before it answered the last message. The next message is joined to
    it.
    """
    options: SessionOptions = field(default_factory=SessionOptions)
    """Choices of the user for the replies."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no message."""
        return not self.messages

    @property
    def awaits_reply(self) -> bool:
        """Whether the last message is a user's."""
        return bool(self.messages) and self.messages[-1].role is Role.USER

    @property
    def last_reply(self) -> ChatMessage | None:
        """The newest reply; None if there is none."""
        return next(
            (message for message in reversed(self.messages) if message.role is Role.ASSISTANT), None
        )

    @property
    def summary(self) -> Summary | None:
        """Summary that the model reads; None if there is none."""
        if not self.summaries:
            return None
        return self.summaries[-1]

    @property
    def system_text(self) -> str:
        """System prompt of requests: that of the conversation, and the summary; "" for none."""
        texts = [self.system or ""]
        if self.summary is not None:
            texts.append(f"{SUMMARY_HEADING}\n\n{self.summary.text}")
        return "\n\n".join(filter(None, texts))

    def summarize(self, text: str, n_messages: int) -> None:
        """Let the model read a summary in place of the first messages."""
        summary = Summary(text, n_messages, self.n_dropped)
        self.summaries = (*self.summaries, summary)
        self.n_dropped = max(self.n_dropped, n_messages)

    def remove_summary(self) -> Summary:
        """Let the model read the messages of the last summary again, and return it.

        Raises ValueError: there is none.
        """
        if self.summary is None:
            raise ValueError("there is no summary")
        *earlier, summary = self.summaries
        self.summaries = tuple(earlier)
        self.n_dropped = summary.n_dropped_before
        self.drop_gaps()
        return summary

    def drop_summaries_beyond(self, n_messages: int) -> None:
        """Remove summaries of more than the first messages."""
        self.summaries = tuple(
            summary for summary in self.summaries if summary.n_messages <= n_messages
        )

    def prompt_messages(self, with_unanswered: bool = True) -> tuple[PromptMessage, ...]:
        """Return the system prompt and the messages of the context for a request."""
        messages = self.messages[self.n_dropped :]
        if not with_unanswered and messages and messages[-1].role is Role.USER:
            messages.pop()
        system_text = self.system_text
        system = (PromptMessage(SYSTEM, system_text),) if system_text else ()
        return (
            *system,
            *(
                prompt_message_of(message, following)
                for message, following in zip_longest(messages, messages[1:])
            ),
        )

    def drop_gaps(self) -> None:
        """Drop all turns up to the last missing message from the context."""
        gaps = [index for index, message in enumerate(self.messages) if message.is_missing]
        if gaps:
            self.n_dropped = max(self.n_dropped, gaps[-1] // 2 * 2 + 2)

    def add_user(
        self, text: str, folded: str = "", pictures: tuple[Picture, ...] = ()
    ) -> ChatMessage:
        """Append a user's message, in place of one that has no reply.

        Most chat templates refuse two user messages in a row.
        """
        message = ChatMessage(Role.USER, text, folded=folded, pictures=pictures)
        if self.awaits_reply:
            unanswered = self.messages.pop()
            message.alternatives = unanswered.alternatives
            message.n_older = unanswered.n_older
        self.has_interrupted_turn = False
        self.messages.append(message)
        return message

    def add_results(self, results: tuple[CallResult, ...]) -> ChatMessage:
        """Append the results of the last reply's tool calls.

        Raises ValueError: the last message has no such calls.
        """
        if self.messages:
            last = self.messages[-1]
        else:
            last = None
        if last is None or [call.call_id for call in last.calls] != [
            result.call_id for result in results
        ]:
            raise ValueError("results need the calls that they answer")
        text = "\n\n".join(f"{result.name}: {result.text}" for result in results)
        self.messages.append(ChatMessage(Role.USER, text, results=results))
        return self.messages[-1]

    @property
    def user_text(self) -> str:
        """Text of all user messages in the context, files included."""
        return "\n\n".join(
            message.text for message in self.messages[self.n_dropped :] if message.role is Role.USER
        )

    @property
    def unanswered_message(self) -> ChatMessage | None:
        """Message that was not answered before the program ended; None if there is none."""
        is_said = self.has_interrupted_turn and self.awaits_reply and not self.messages[-1].results
        if is_said:
            return self.messages[-1]
        return None

    @property
    def n_rounds(self) -> int:
        """Number of tool rounds since the user's last message."""
        questions = (message for message in reversed(self.messages) if message.role is Role.USER)
        return sum(1 for _ in takewhile(lambda question: question.results, questions))

    def join_unanswered(self, text: str, folded: str = "") -> tuple[str, str]:
        """Join a new message to the unanswered one.

        Returns the text, and the text with large pastes folded ("" if nothing is folded).
        """
        unanswered = self.unanswered_message
        if unanswered is None:
            return text, folded
        has_folds = unanswered.folded or folded
        if has_folds:
            folded = f"{unanswered.folded or unanswered.text}\n\n{folded or text}"
        else:
            folded = ""
        return f"{unanswered.text}\n\n{text}", folded

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
        """Set the sources of all replies, from their questions."""
        for question, reply in zip(self.messages[::2], self.messages[1::2], strict=False):
            reply.sources = sources_of(question.text)

    def take_back_user(self) -> str:
        """Remove the user's message at the end and return its text.

        Raises ValueError: there is none.
        """
        if not self.awaits_reply:
            raise ValueError("the last message has its answer")
        return self.messages.pop().text

    def drop_reply(self) -> ChatMessage:
        """Remove the reply at the end and return it.

        Raises ValueError: there is none.
        """
        if not self.messages or self.messages[-1].role is not Role.ASSISTANT:
            raise ValueError("the last message is not a reply")
        return self.messages.pop()

    def cut(self, n_messages: int) -> list[ChatMessage]:
        """Keep the first messages and return the removed ones."""
        cut = self.messages[n_messages:]
        del self.messages[n_messages:]
        self.n_dropped = min(self.n_dropped, n_messages)
        self.drop_summaries_beyond(n_messages)
        return cut


def prompt_message_of(message: ChatMessage, following: ChatMessage | None = None) -> PromptMessage:
    """Return a message for a request.

    Templates refuse calls without results: a reply whose calls have none gets its raw text.

    Args:
        following: the next message, or None.
    """
    if message.role is Role.USER:
        return PromptMessage(
            TOOL if message.results else USER,
            message.text,
            results=message.results,
            pictures=message.pictures,
        )
    if following is not None and following.results:
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

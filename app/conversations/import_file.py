"""Import of conversations from files of other programs.

Files are not trusted, and everything left out is counted. Known formats: JSON of this program,
exports of ChatGPT, Claude, Open WebUI, LM Studio and llama-server's web page, and lists of messages
with ``role`` and ``content`` as in Ollama's API, also as JSON lines.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.conversations.conversation import ChatMessage, Conversation, Ending, Role, can_be_saved
from app.conversations.import_branches import add_branches, imported_reply
from app.conversations.import_formats import (
    ForeignMessage,
    RawConversation,
    conversations_in,
    lines_as_values,
    reader_of,
    text_of,
)
from app.conversations.mark_rows import Marks, sound_marks, sound_summaries
from app.conversations.message_row import UnsoundError
from app.conversations.store import MOST_MESSAGES, MOST_TITLE_CHARS
from app.program.refusals import Refusal
from app.reply.thinking import Thinking
from app.text.clean_text import clean_line, clean_text
from app.text.figures import count
from app.text.record import record

MOST_CONVERSATIONS = 10_000
_KNOWN = (
    "jalopy's JSON, exports of ChatGPT, Claude, Open WebUI, LM Studio and llama-server, "
    "and lists of messages as JSON or JSON lines"
)

Values = Mapping[str, Any]


@record
class ForeignConversation:
    """A conversation of a file."""

    title: str
    conversation: Conversation
    began: str
    """Wall time as ISO text; "" if the file has none."""
    left_out: Mapping[str, int]
    """Number of items left out, by a phrase in the singular."""
    model: str = ""
    """Name of the model that wrote the replies; "" if it is not known."""
    marks: Marks = field(default_factory=Marks)
    """Pin and tags."""


def read_conversations(raw: bytes) -> Iterator[ForeignConversation]:
    """Yield the conversations of a file.

    Raises Refusal (without the file's name): the format is unknown, or there are too many
    conversations.
    """
    items = conversations_in(_values_of(raw))
    if len(items) > MOST_CONVERSATIONS:
        raise Refusal(f"has more than {MOST_CONVERSATIONS:,} conversations (split it)")
    if not any(map(reader_of, items)):
        raise Refusal(f"has no conversation in a known format ({_KNOWN})")
    for values in items:
        read = reader_of(values)
        if read is None:
            yield ForeignConversation("", Conversation(), "", {"entry without a conversation": 1})
        else:
            yield _to_conversation(read(values))


def _values_of(raw: bytes) -> Any:
    """Return the value of a JSON or JSON lines file. Raises Refusal: it is neither."""
    refusal = Refusal(f"is not valid JSON (known formats: {_KNOWN})")
    try:
        text = raw.decode(json.detect_encoding(raw), "replace").removeprefix("\ufeff")
    except ValueError:
        raise refusal from None
    try:
        return json.loads(text)
    except RecursionError:
        raise refusal from None
    except ValueError:
        lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) < 2:
        raise refusal
    try:
        return lines_as_values(map(json.loads, lines))
    except (ValueError, RecursionError):
        raise refusal from None


@dataclass
class _Turn:
    """Consecutive messages of one side."""

    first: ForeignMessage
    is_question: bool
    texts: list[str]


def _to_conversation(raw: RawConversation) -> ForeignConversation:
    """Return a conversation in which questions and answers alternate."""
    left_out = Counter[str]()
    left_out["message of another branch"] = max(0, raw.n_other)
    system: str | None = None
    if isinstance(raw.system, str) and raw.system and can_be_saved(raw.system):
        system = clean_text(raw.system)
    turns: list[_Turn] = []
    for message in raw.messages:
        text = _joined(message, left_out)
        role = message.role.lower()
        is_question = role in ("user", "human", "you")
        is_answer = role in ("assistant", "model", "bot")
        if role in ("system", "developer") and text and system is None and not turns:
            system = text
        elif is_question or (is_answer and turns):
            if turns and turns[-1].is_question == is_question:
                turns[-1].texts.append(text)
            else:
                turns.append(_Turn(message, is_question, [text]))
        elif text or role not in ("system", "developer"):
            left_out["message of another role"] += 1
    beyond = turns[MOST_MESSAGES:]
    left_out[f"message beyond the first {count(MOST_MESSAGES)}"] = sum(
        len(turn.texts) for turn in beyond
    )
    conversation = Conversation(system)
    for turn in turns[:MOST_MESSAGES]:
        _add_turn(conversation, turn, left_out)
    summaries = sound_summaries(raw.summaries, len(conversation.messages) - 1)
    if summaries:
        conversation.summaries = summaries
        conversation.n_dropped = summaries[-1].n_messages
    title = clean_line(" ".join(text_of(raw.title).split()), MOST_TITLE_CHARS)
    return ForeignConversation(
        title,
        conversation,
        raw.began,
        {phrase: count_ for phrase, count_ in left_out.items() if count_},
        clean_line(text_of(raw.model), MOST_TITLE_CHARS),
        sound_marks(raw.marks),
    )


def _joined(message: ForeignMessage, left_out: Counter[str]) -> str:
    texts = [clean_text(value) for value in message.parts if isinstance(value, str)]
    left_out["part without text"] += len(message.parts) - len(texts)
    text = "\n\n".join(filter(None, texts))
    if can_be_saved(text):
        return text
    left_out[_TOO_LONG] += 1
    return ""


_TOO_LONG = "text too long to be saved"


def _add_turn(conversation: Conversation, turn: _Turn, left_out: Counter[str]) -> None:
    text = "\n\n".join(filter(None, turn.texts))
    if len(turn.texts) > 1 and not can_be_saved(text):
        left_out[_TOO_LONG] += len(turn.texts)
        text = ""
    if turn.is_question:
        message = conversation.add_user(text)
    else:
        message = _reply(turn.first, text, left_out)
        conversation.messages.append(message)
    if turn.first.values is not None:
        add_branches(message, turn.first.values, left_out)


def _reply(message: ForeignMessage, text: str, left_out: Counter[str]) -> ChatMessage:
    reply = ChatMessage(Role.ASSISTANT, text, Ending.COMPLETE)
    if message.values is not None:
        try:
            reply = imported_reply(message.values, text)
        except UnsoundError:
            left_out["reply's figures"] += 1
    elif isinstance(message.thought, str) and message.thought and can_be_saved(message.thought):
        reply.thinking = Thinking(clean_text(message.thought), is_closed=True)
    return reply

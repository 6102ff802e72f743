"""Conversations in other programs' files, as conversations of ours. Hostile until checked; what is left out is counted.

Known are our own JSON, exports of ChatGPT, Claude, Open WebUI, LM Studio and llama-server's web page, and lists of
messages with ``role`` and ``content``, as Ollama's API and many programs have them; also with a JSON value a line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from app.conversations.conversation import ChatMessage, Conversation, Ending, Role
from app.conversations.foreign_formats import (
    ForeignMessage,
    ForeignTalk,
    conversations_in,
    lines_as_values,
    reader_of,
    text_of,
)
from app.conversations.message_row import MOST_TEXT_BYTES, UnsoundError, fits, reply_of
from app.conversations.store import MOST_TITLE_CHARS
from app.conversations.thinking import Thinking
from app.program.refusals import Refusal
from app.text.clean_text import clean_line, clean_text
from app.text.figures import count
from app.text.record import record

MOST_CONVERSATIONS = 10_000
MOST_MESSAGES = 100_000
"""Limit on the messages of one conversation."""
_MOST_JOINED_CHARS = MOST_TEXT_BYTES // 12
"""Limit on messages of the same side that follow each other, which become one."""
_KNOWN = (
    "jalopy's JSON, exports of ChatGPT, Claude, Open WebUI, LM Studio and llama-server, "
    "and lists of messages as JSON or JSON lines"
)

Values = Mapping[str, Any]


@record
class Foreign:
    """One conversation of a file."""

    title: str
    conversation: Conversation
    began: str
    """Wall time, ISO; "" where the file does not say."""
    left_out: Mapping[str, int]
    """How often what could not be taken over, by what it was: a noun, and what goes with it."""


def foreign_conversations(raw: bytes) -> Iterator[Foreign]:
    """Yield the conversations of a file. Raises Refusal, which names no file: it is unknown, or has too many."""
    found = conversations_in(_values_of(raw))
    if len(found) > MOST_CONVERSATIONS:
        raise Refusal(f"has more than {MOST_CONVERSATIONS:,} conversations (split it)")
    if not any(map(reader_of, found)):
        raise Refusal(f"holds no conversation that is known here (known are {_KNOWN})")
    for values in found:
        read = reader_of(values)
        if read is None:
            yield Foreign("", Conversation(), "", {"entry without a conversation": 1})
        else:
            yield _taken(read(values))


def _values_of(raw: bytes) -> Any:
    """Return the JSON of a file, or that of its lines. Raises Refusal: it is neither."""
    refusal = Refusal(f"is no sound JSON (known are {_KNOWN})")
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


def _taken(talk: ForeignTalk) -> Foreign:
    """Return a conversation of what was said: questions and answers in turn."""
    conversation = Conversation()
    left_out = Counter[str]()
    left_out["message of another branch"] = max(0, talk.n_other)
    left_out[f"message beyond the first {count(MOST_MESSAGES)}"] = max(0, len(talk.messages) - MOST_MESSAGES)
    if isinstance(talk.system, str) and talk.system and fits(talk.system):
        conversation.system = clean_text(talk.system)
    for message in talk.messages[:MOST_MESSAGES]:
        text = _joined(message, left_out)
        role = message.role.lower()
        if role in ("system", "developer") and text and conversation.system is None and conversation.is_empty:
            conversation.system = text
        elif role in ("user", "human", "you"):
            _add_user(conversation, text, left_out)
        elif role in ("assistant", "model", "bot") and not conversation.is_empty:
            _add_reply(conversation, message, text, left_out)
        elif text or role not in ("system", "developer"):
            left_out["message by neither side"] += 1
    title = clean_line(" ".join(text_of(talk.title).split()), MOST_TITLE_CHARS)
    return Foreign(title, conversation, talk.began, {what: n for what, n in left_out.items() if n})


def _joined(message: ForeignMessage, left_out: Counter[str]) -> str:
    texts = [clean_text(part) for part in message.parts if isinstance(part, str)]
    left_out["part without text"] += len(message.parts) - len(texts)
    text = "\n\n".join(filter(None, texts))
    if fits(text):
        return text
    left_out["text too long to be saved"] += 1
    return ""


def _add_user(conversation: Conversation, text: str, left_out: Counter[str]) -> None:
    if conversation.awaits_reply:
        text = _with_more(conversation.take_back_user(), text, left_out)
    conversation.add_user(text)


def _add_reply(conversation: Conversation, message: ForeignMessage, text: str, left_out: Counter[str]) -> None:
    if not conversation.awaits_reply:  # an answer in several parts
        before = conversation.messages[-1]
        before.text = _with_more(before.text, text, left_out)
        return
    reply = ChatMessage(Role.ASSISTANT, text, Ending.COMPLETE)
    if message.values is not None:
        try:
            own: Values = {"ids": None, "raw": None, "calls": [], "server_fields": None}
            reply = reply_of({**message.values, **own, "edited": message.values.get("is_edited")})
            reply.text, reply.raw = text, ""
        except UnsoundError:
            left_out["reply's figures"] += 1
    elif isinstance(message.thought, str) and message.thought and fits(message.thought):
        reply.thinking = Thinking(clean_text(message.thought), is_closed=True)
    conversation.messages.append(reply)


def _with_more(before: str, text: str, left_out: Counter[str]) -> str:
    """Return a message with another of the same side, as far as it may be saved."""
    if len(before) + len(text) < _MOST_JOINED_CHARS:
        return "\n\n".join(filter(None, (before, text)))
    left_out["text too long to be saved"] += 1
    return before

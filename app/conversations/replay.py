"""From the records of a log to the conversation they tell of, and from its parts to records.

==========  ==================================================================================================
``head``    format, version, when it began, system prompt, what it was forked from; always the first
``model``   who answers from now on
``say``     what the user said
``part``    more of the reply that is being written; the ``reply`` that ends it says all of it again
``reply``   a whole reply, or what there is of one
``keep``    only the first n messages are left: something else takes the place of the others
``try``     the user sent something in place of messages that stay until its reply begins
``back``    nothing came of that
``title``   the user's name for the conversation
``drop``    the first n messages are no part of the context any more
==========  ==================================================================================================

A record of another kind was written by a newer version. Everything is checked: the file may hold anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from app.clean_text import clean_line, clean_text
from app.conversation import ChatMessage, Conversation, Ending, ReplyFigures, Role
from app.conversations.records import Record
from app.record import record
from app.thinking import Thinking

FORMAT = "jalopy conversation"
VERSION = 1
MOST_TITLE_CHARS = 120
_MOST_NAME_CHARS = 80
_MOST_PATH_CHARS = 4096
_LARGEST = 1 << 53


class UnsoundRecordError(Exception):
    """The record does not fit what stands before it."""


class NewerVersionError(Exception):
    """A newer version of the program wrote this."""


@dataclass
class Saved:
    """A conversation with what is known of it.

    Attributes:
        system_was_set: whether the log has begun.
        title: given by the user; "" where the first message serves.
        began, changed: wall time, ISO; only for display.
        model, model_path: who answered last.
        order: which conversation was used later has the larger one, whatever the clock did.
        unsent: what the user had sent in place of something, and that had not begun to be answered.
        forked_from: id of another one.
    """

    conversation: Conversation = field(default_factory=Conversation)
    title: str = ""
    began: str = ""
    changed: str = ""
    model: str = ""
    model_path: str = ""
    order: int = 0
    unsent: str = ""
    forked_from: str = ""

    @property
    def shown_title(self) -> str:
        """The user's title, or the beginning of the first message; one clean line."""
        first = next((m.folded or m.text for m in self.conversation.messages if m.role is Role.USER), "")
        return self.title or title_of(first)


def title_of(text: str) -> str:
    """Return a title for a conversation that begins with this message."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return clean_line(" ".join(first.split()), MOST_TITLE_CHARS)


class Replay:
    """Takes records in order; what it has understood so far is always whole."""

    def __init__(self) -> None:
        self.saved = Saved()
        self._has_head = False
        self._part: _Part | None = None
        self._takes: dict[str, Callable[[Record], None]] = {
            "model": self._model,
            "say": self._say,
            "part": self._take_part,
            "reply": self._reply,
            "keep": self._keep,
            "try": self._try,
            "back": self._back,
            "title": self._title,
            "drop": self._drop,
        }

    def take(self, record: Record) -> None:
        """Understand one more record.

        Raises:
            UnsoundRecordError: it makes no sense here; nothing was changed.
            NewerVersionError: a newer version wrote it.
        """
        kind = record.get("k")
        if not self._has_head:
            self._head(record)
            return
        take = self._takes.get(kind) if isinstance(kind, str) else None
        if take is None:
            raise NewerVersionError
        take(record)

    def finish(self) -> Saved:
        """The log ends here: a reply of which only parts came is a reply that was interrupted."""
        self._end_part()
        return self.saved

    @property
    def _messages(self) -> list[ChatMessage]:
        return self.saved.conversation.messages

    def _head(self, record: Record) -> None:
        version = record.get("version")
        if record.get("k") != "head" or record.get("format") != FORMAT or type(version) is not int or version < 1:
            raise UnsoundRecordError
        if version > VERSION:
            raise NewerVersionError
        system = record.get("system")
        self.saved.conversation.system = clean_text(_text(record, "system")) if system is not None else None
        self.saved.began = self.saved.changed = _line(record, "at")
        self.saved.forked_from = _line(record, "from")
        self._has_head = True

    def _model(self, record: Record) -> None:
        name, path = _line(record, "name"), _text(record, "path")[:_MOST_PATH_CHARS]
        self.saved.model, self.saved.model_path = name, path

    def _say(self, record: Record) -> None:
        text, folded = clean_text(_text(record, "text")), clean_text(_text(record, "folded"))
        order, at = _count(record, "order"), _line(record, "at")
        self._end_part()
        self.saved.conversation.add_user(text, folded)
        self._note(order, at)

    def _reply(self, record: Record) -> None:
        message = _reply_of(record)
        at = _line(record, "at")
        if not self.saved.conversation.awaits_reply:
            raise UnsoundRecordError
        self._part = None
        self._messages.append(message)
        self._note(0, at)

    def _take_part(self, record: Record) -> None:
        text, thought = clean_text(_text(record, "text")), clean_text(_text(record, "thought"))
        ids, raw, edited = _ids(record), _text(record, "raw"), record.get("edited") is True
        if not self.saved.conversation.awaits_reply:
            raise UnsoundRecordError
        part = self._part or _Part()
        self._part = _Part(part.text + text, part.thought + thought, (*part.ids, *ids), part.raw + raw, edited)
        self.saved.unsent = ""

    def _keep(self, record: Record) -> None:
        n = _count(record, "n")
        self._end_part()
        if n > len(self._messages):
            raise UnsoundRecordError
        self.saved.conversation.cut(n)
        self.saved.unsent = ""

    def _try(self, record: Record) -> None:
        self.saved.unsent = clean_text(_text(record, "text"))
        self._end_part()

    def _back(self, record: Record) -> None:
        self.saved.unsent = ""

    def _title(self, record: Record) -> None:
        self.saved.title = clean_line(_text(record, "text"), MOST_TITLE_CHARS)

    def _drop(self, record: Record) -> None:
        n = _count(record, "n")
        if n > len(self._messages):
            raise UnsoundRecordError
        self.saved.conversation.n_dropped = n

    def _note(self, order: int, at: str) -> None:
        self.saved.order = max(self.saved.order, order)
        self.saved.changed = at or self.saved.changed
        self.saved.unsent = ""

    def _end_part(self) -> None:
        part, self._part = self._part, None
        if part is not None and (part.text or part.thought or part.ids):
            self._messages.append(part.message())


@record
class _Part:
    text: str = ""
    thought: str = ""
    ids: tuple[int, ...] = ()
    raw: str = ""
    is_edited: bool = False

    def message(self) -> ChatMessage:
        thinking = Thinking(self.thought, is_closed=bool(self.text)) if self.thought.strip() else None
        message = ChatMessage(Role.ASSISTANT, self.text, Ending.INTERRUPTED, None, thinking, self.is_edited)
        message.ids, message.raw = self.ids, self.raw
        return message


# ---- records of what happens


def head_record(system: str | None, at: str, forked_from: str = "") -> Record:
    """The first record of a log."""
    return {"k": "head", "format": FORMAT, "version": VERSION, "at": at, "system": system, "from": forked_from}


def message_record(message: ChatMessage, order: int, at: str) -> Record:
    """One message, whole."""
    if message.role is Role.USER:
        return {"k": "say", "text": message.text, "folded": message.folded, "order": order, "at": at}
    figures = asdict(message.figures) if message.figures is not None else None
    thinking = asdict(message.thinking) if message.thinking is not None else None
    return {
        "k": "reply",
        "text": message.text,
        "ending": message.ending.value,
        "figures": figures,
        "thinking": thinking,
        "edited": message.is_edited,
        "ids": list(message.ids),
        "raw": message.raw if message.raw != message.text else None,
        "at": at,
    }


def _reply_of(record: Record) -> ChatMessage:
    try:
        ending = Ending(record.get("ending"))
    except ValueError:
        raise UnsoundRecordError from None
    text, raw = _text(record, "text"), record.get("raw")
    message = ChatMessage(Role.ASSISTANT, clean_text(text), ending, _figures(record.get("figures")))
    message.thinking = _thinking(record.get("thinking"))
    message.is_edited = record.get("edited") is True
    message.ids = _ids(record)
    message.raw = raw if isinstance(raw, str) else text
    return message


def _figures(values: Any) -> ReplyFigures | None:
    if values is None:
        return None
    if not isinstance(values, dict):
        raise UnsoundRecordError
    span: Any = values.get("range_tps")
    has_range = isinstance(span, list) and len(span) == 2 and all(_is_number(one) for one in span)
    return ReplyFigures(
        tokens=_count(values, "tokens"),
        first_token_s=_number(values, "first_token_s"),
        decode_tps=_number(values, "decode_tps"),
        prompt_tokens=_count(values, "prompt_tokens"),
        reused_tokens=_count(values, "reused_tokens"),
        range_tps=(float(span[0]), float(span[1])) if has_range else None,
    )


def _thinking(values: Any) -> Thinking | None:
    if values is None:
        return None
    if not isinstance(values, dict):
        raise UnsoundRecordError
    duration_s = _number(values, "duration_s") or 0.0
    is_closed = values.get("is_closed") is True
    return Thinking(clean_text(_text(values, "text")), _count(values, "tokens"), duration_s, is_closed)


def _text(values: Record, name: str) -> str:
    value = values.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UnsoundRecordError
    return value


def _line(values: Record, name: str) -> str:
    return clean_line(_text(values, name), _MOST_NAME_CHARS)


def _count(values: Record, name: str) -> int:
    value = values.get(name, 0)
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise UnsoundRecordError
    return value


def _number(values: Record, name: str) -> float | None:
    value = values.get(name)
    if value is None:
        return None
    if not _is_number(value):
        raise UnsoundRecordError
    return float(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _LARGEST and math.isfinite(value) and value >= 0


def _ids(values: Record) -> tuple[int, ...]:
    ids = values.get("ids")
    if ids is None:
        return ()
    if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < _LARGEST for one in ids):
        raise UnsoundRecordError
    return tuple(ids)

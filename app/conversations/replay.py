"""From the records of a log to the conversation they tell of, and from its parts to records.

==========  ==================================================================================================
``head``    format, version, when it began, system prompt, what it was forked from; always the first
``model``   who answers from now on
``say``     what the user said
``part``    more of the reply that is being written; the ``reply`` that ends it says all of it again
``reply``   a reply: a whole one, or its beginning if it was stopped
``keep``    only the first n messages are left: something else takes the place of the others
``try``     the user sent something in place of messages that stay until its reply begins
``back``    nothing came of that
``title``   a name for the conversation, the user's or the model's
``drop``    the context no longer contains the first n messages
``wait``    behind the first n that wait for their turn, none waits, or one with this text; a ``say`` of it ends that
==========  ==================================================================================================

A record of another kind was written by a newer version. Everything is checked: the file may hold anything. Lines may be
missing between two records: ``on`` says which messages one was written behind (see ``LinkedMessages``), and ``after``
of a ``part`` behind which parts of its reply.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from app.conversations.conversation import ChatMessage, Conversation, Ending, ReplyFigures, Role
from app.conversations.records import Record
from app.conversations.thinking import Thinking
from app.text.chips import CHIP
from app.text.clean_text import clean_line, clean_text
from app.text.record import record
from engine.prompt.tools.calls import MOST_CALLS, NAME, CallResult, ToolCall, call

FORMAT = "jalopy conversation"
VERSION = 1
MOST_TITLE_CHARS = 120
_MOST_NAME_CHARS = 80
_MOST_PATH_CHARS = 4096
_MOST_WAITING = 64
_LARGEST = 1 << 53
NOTHING = 0
"""The number of no messages."""
_LARGEST_LINK = (1 << 32) - 1


class UnsoundRecordError(Exception):
    """The record does not fit what stands before it."""


class NewerVersionError(Exception):
    """A newer version of the program wrote this."""


@dataclass
class Saved:
    """A conversation with what is known of it."""

    conversation: Conversation = field(default_factory=Conversation)
    title: str = ""
    """Given by the user or the model; "" where the first message serves."""
    began: str = ""
    changed: str = ""
    """Wall time, ISO; only for display."""
    model: str = ""
    model_path: str = ""
    """Who answered last."""
    order: int = 0
    """Which conversation was used later has the larger one, whatever the clock did."""
    unsent: str = ""
    """What the user had sent in place of something, and that had not begun to be answered."""
    forked_from: str = ""
    """Id of another one."""
    waiting: list[str] = field(default_factory=list)
    """What the user had sent while the engine was busy, oldest first."""
    links: list[int] = field(default_factory=lambda: [NOTHING])
    """What the next record is written behind, for any number of messages."""
    has_head: bool = True
    """Whether its beginning was there, and with it the system prompt."""
    lost_behind: list[int] = field(default_factory=list)
    """For each place where messages are known to be lost, the number of messages before it."""
    is_end_lost: bool = False
    """Whether there was something behind the last message."""

    @property
    def shown_title(self) -> str:
        """The title, or the beginning of the first message; one clean line."""
        first = next((m.folded or m.text for m in self.conversation.messages if m.role is Role.USER and m.text), "")
        return self.title or title_of(first or next(iter(self.waiting), ""))

    @property
    def not_sent(self) -> str:
        """Everything that was sent and is not in the conversation, for the user to send again; "" where all is."""
        return "\n\n".join(filter(None, (self.unsent, *self.waiting)))


_OPENING_CHIPS = re.compile(rf"^(?:{CHIP.pattern}\s*)+")


def title_of(text: str) -> str:
    """Return a title for a conversation that begins with this message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # What was typed says more than the chips of files and pastes before it.
    typed = (_OPENING_CHIPS.sub("", line).strip() for line in lines)
    first = next(filter(None, typed), next(iter(lines), ""))
    return clean_line(" ".join(first.split()), MOST_TITLE_CHARS)


def linked(link: int, checksum: int) -> int:
    """Return the number of the messages of one number and one more, whose line has this checksum."""
    return zlib.crc32(checksum.to_bytes(4, "little"), link)


def link_in(value: object) -> int | None:
    """Return what a record says; None where it was written by a version that knew no such numbers."""
    return value if type(value) is int and 0 <= value <= _LARGEST_LINK else None


class LinkedMessages:
    """The messages of a conversation that is being read. ``links``: the number of the first n messages, for every n.

    Where the number that a record names is known, no message is missing, and what stood behind those messages had been
    replaced; where it is not, a gap is left: messages that only say that they are missing, so that both sides still
    take turns.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.links = [NOTHING]
        self._places = {NOTHING: 0}
        self._first_gap: int | None = None

    @property
    def has_gap(self) -> bool:
        """Whether something unknown stands between the messages: nobody knows how many were there."""
        return self._first_gap is not None

    def add(self, message: ChatMessage, checksum: int) -> None:
        """Append one."""
        self._conversation.messages.append(message)
        self._link(linked(self.links[-1], checksum))

    def cut(self, n_messages: int) -> None:
        """Keep the first ones only."""
        self._conversation.cut(n_messages)
        if self._first_gap is not None and self._first_gap >= n_messages:
            self._first_gap = None
        for n in range(n_messages + 1, len(self.links)):
            if self._places.get(self.links[n]) == n:
                del self._places[self.links[n]]
        del self.links[n_messages + 1 :]

    def place_of(self, link: int) -> int | None:
        """Return how many messages have this number; None where that is not known."""
        return self._places.get(link)

    def has(self, place: int, checksum: int) -> bool:
        """Whether the message at ``place`` (messages before it) is already the one with this checksum."""
        return place + 1 < len(self.links) and self.links[place + 1] == linked(self.links[place], checksum)

    def leave_gap(self, role: Role, link: int | None) -> None:
        """Something unknown stood here, before a message of this side that was written behind this number."""
        if self._first_gap is None:
            self._first_gap = len(self._conversation.messages)
        missing = [Role.ASSISTANT] if self._conversation.awaits_reply else []
        if role is Role.ASSISTANT:
            missing.append(Role.USER)
        for side in missing or [Role.USER, Role.ASSISTANT]:
            self.add(ChatMessage(side, "", is_missing=True), 0)
        if link is not None:
            self._places.pop(self.links.pop())
            self._link(link)

    def _link(self, link: int) -> None:
        self.links.append(link)
        self._places[link] = len(self.links) - 1


class Replay:
    """Takes records in order; what it has understood so far is always whole."""

    def __init__(self) -> None:
        self.saved = Saved(has_head=False)
        self._linked = LinkedMessages(self.saved.conversation)
        self._has_begun = False
        self._is_unsure = False
        """Whether something was lost since the last record that says what it was written behind."""
        self._part: _Part | None = None
        self._takes: dict[str, Callable[[Record, int], None]] = {
            "head": self._head,
            "model": self._model,
            "say": self._say,
            "part": self._take_part,
            "reply": self._reply,
            "keep": self._keep,
            "try": self._try,
            "back": self._back,
            "title": self._title,
            "drop": self._drop,
            "wait": self._wait,
        }

    def take(self, record: Record, checksum: int) -> None:
        """Understand a record. Raises UnsoundRecordError: it makes no sense; NewerVersionError: it is a newer one's."""
        kind = record.get("k")
        if not self._has_begun and kind != "head":
            self.note_lost()
        self._has_begun = True
        take = self._takes.get(kind) if isinstance(kind, str) else None
        if take is None:
            raise NewerVersionError
        take(record, checksum)

    def note_lost(self) -> None:
        """Something stood here that cannot be read."""
        self._has_begun = self._is_unsure = True

    def finish(self) -> Saved:
        """The log ends here: a reply of which only parts came is a reply that was interrupted."""
        self._end_part()
        conversation, saved = self.saved.conversation, self.saved
        if conversation.awaits_reply and self._messages[-1].is_missing:  # nobody can answer that
            self._linked.cut(len(self._messages) - 1)
            self._is_unsure = True
        conversation.drop_gaps()
        conversation.note_sources()
        conversation.is_cut_off = conversation.awaits_reply
        saved.links, saved.is_end_lost = self._linked.links, self._is_unsure
        saved.lost_behind = [n for n in saved.lost_behind if n <= len(self._messages)]
        return saved

    @property
    def _messages(self) -> list[ChatMessage]:
        return self.saved.conversation.messages

    def _head(self, record: Record, _: int) -> None:
        version: int = record.get("version", 0)
        # A second one is of a log that had lost its own, and was gone on with.
        _require(not self.saved.has_head and record.get("format") == FORMAT and type(version) is int and version >= 1)
        if version > VERSION:
            raise NewerVersionError
        system = record.get("system")
        self.saved.conversation.system = clean_text(_text(record, "system")) if system is not None else None
        self.saved.began = self.saved.changed = _line(record, "at")
        self.saved.forked_from = _line(record, "from")
        self.saved.has_head = True

    def _model(self, record: Record, _: int) -> None:
        self.saved.model, self.saved.model_path = _line(record, "name"), _text(record, "path")[:_MOST_PATH_CHARS]

    def _say(self, record: Record, checksum: int) -> None:
        text, folded = clean_text(_text(record, "text")), clean_text(_text(record, "folded"))
        order, at, results = _count(record, "order"), _line(record, "at"), _results(record)
        self._end_part()
        self._stand(record, Role.USER, checksum)
        if self.saved.conversation.awaits_reply:  # as versions wrote that knew no links
            self._linked.cut(len(self._messages) - 1)
        message = ChatMessage(Role.USER, text, folded=folded, results=results, is_missing=record.get("missing") is True)
        self._linked.add(message, checksum)
        if text in self.saved.waiting[:1]:
            del self.saved.waiting[0]
        self._note(order, at)

    def _reply(self, record: Record, checksum: int) -> None:
        message = reply_of(record)
        at, on = _line(record, "at"), link_in(record.get("on"))
        if self._part is not None and not self._is_of(self._part, on):
            self._end_part()
        self._stand(record, Role.ASSISTANT, checksum)
        self._part = None
        self._linked.add(message, checksum)
        self._note(0, at)

    def _take_part(self, record: Record, checksum: int) -> None:
        text, thought = _text(record, "text"), _text(record, "thought")
        ids, raw, edited = _ids(record), _text(record, "raw"), record.get("edited") is True
        on, after = link_in(record.get("on")), link_in(record.get("after"))
        part = self._part if self._part is not None and self._is_of(self._part, on) else None
        is_known = not self._is_unsure if after is None else after == (part.checksum if part is not None else NOTHING)
        _require(is_known)  # or what stood before it is missing, and it would be put behind other words
        if part is None:
            part = self._first_part(on)
        self._part = _Part(
            on,
            part.text + clean_text(text),
            part.thought + clean_text(thought),
            (*part.ids, *ids),
            part.raw + raw,
            edited,
            linked(part.checksum, checksum),
        )
        self.saved.unsent = ""

    def _first_part(self, on: int | None) -> _Part:
        place = self._linked.place_of(on) if on is not None else None
        is_answer = place is not None and place > 0 and self._messages[place - 1].role is Role.USER
        if on is None:
            is_answer = self.saved.conversation.awaits_reply and self._part is None
        _require(is_answer or (on is not None and place is None))
        self._end_part()
        if place is not None:
            self._linked.cut(place)
        self._is_unsure = False
        return _Part(on)

    def _is_of(self, part: _Part, on: int | None) -> bool:
        """Whether a record that was written behind these messages is of the reply that is being written."""
        return part.on == on and not (on is None and self._is_unsure)

    def _keep(self, record: Record, _: int) -> None:
        n, on = _count(record, "n"), link_in(record.get("on"))
        self._end_part()
        place = self._place(n, on)
        if place is None:
            self._is_unsure = True
        else:
            _require(place <= len(self._messages))
            self._linked.cut(place)
            self._is_unsure = False
            if record.get("lost") is True:
                self.saved.lost_behind.append(place)
        self.saved.unsent = ""

    def _place(self, n: int, on: int | None) -> int | None:
        """Return how many messages here are the first n of those that a record speaks of; None where nobody knows."""
        if on is not None:
            return self._linked.place_of(on)
        return n if n == 0 or not (self._is_unsure or self._linked.has_gap) else None

    def _try(self, record: Record, _: int) -> None:
        self.saved.unsent = clean_text(_text(record, "text"))
        self._end_part()

    def _back(self, record: Record, _: int) -> None:
        self.saved.unsent = ""

    def _title(self, record: Record, _: int) -> None:
        self.saved.title = clean_line(_text(record, "text"), MOST_TITLE_CHARS)

    def _drop(self, record: Record, _: int) -> None:
        n, on = _count(record, "n"), link_in(record.get("on"))
        place = self._place(n, on)
        if place is None:
            return  # of messages that are not there; what is too much goes again when the context is full
        _require(place <= len(self._messages))
        self.saved.conversation.n_dropped = place

    def _wait(self, record: Record, _: int) -> None:
        n, order, waiting = _count(record, "n"), _count(record, "order"), self.saved.waiting
        text = clean_text(_text(record, "text"))
        _require(n <= len(waiting) and n < _MOST_WAITING)
        self.saved.waiting = [*waiting[:n], *([text] if text else [])]
        self.saved.order = max(self.saved.order, order)

    def _stand(self, record: Record, role: Role, checksum: int) -> None:
        """Bring the messages to what a new one was written behind; what is missing there leaves a gap."""
        on = link_in(record.get("on"))
        place = self._linked.place_of(on) if on is not None else None
        if on is None and not self._is_unsure:
            place = len(self._messages)
        if place is None:
            self._linked.leave_gap(role, on)
        else:
            _require(role is Role.USER or (place > 0 and self._messages[place - 1].role is Role.USER))
            _require(not self._linked.has(place, checksum))  # or it is there already
            self._linked.cut(place)
        self._is_unsure = False

    def _note(self, order: int, at: str) -> None:
        self.saved.order = max(self.saved.order, order)
        self.saved.changed = at or self.saved.changed
        self.saved.unsent = ""

    def _end_part(self) -> None:
        part, self._part = self._part, None
        if part is None or not (part.text or part.thought or part.ids):
            return
        if part.on is not None and self._linked.place_of(part.on) is None:
            self._linked.leave_gap(Role.ASSISTANT, part.on)
        self._linked.add(part.message(), part.checksum)


@record
class _Part:
    """A reply as far as it was written."""

    on: int | None = None
    """What its records were written behind."""
    text: str = ""
    thought: str = ""
    ids: tuple[int, ...] = ()
    raw: str = ""
    is_edited: bool = False
    checksum: int = 0
    """Of all its lines."""

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
        say = {"k": "say", "text": message.text, "folded": message.folded, "order": order, "at": at}
        if message.results:
            say["results"] = [{"id": one.call_id, "name": one.name, "text": one.text} for one in message.results]
        return {**say, "missing": True} if message.is_missing else say
    figures = asdict(message.figures) if message.figures is not None else None
    if figures is not None and not figures["guessed_tokens"]:
        del figures["guessed_tokens"]  # as it was written before there were any
    thinking = asdict(message.thinking) if message.thinking is not None else None
    calls = [{"id": one.call_id, "name": one.name, "arguments": one.arguments} for one in message.calls]
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
        **({"calls": calls, "calls_at": message.calls_at} if calls else {}),
        **({"missing": True} if message.is_missing else {}),
    }


def reply_of(record: Record) -> ChatMessage:
    """Return the reply that a record describes. Raises UnsoundRecordError: it describes none."""
    try:
        ending = Ending(record.get("ending"))
    except ValueError:
        raise UnsoundRecordError from None
    text, raw = _text(record, "text"), record.get("raw")
    message = ChatMessage(Role.ASSISTANT, clean_text(text), ending, _figures(record.get("figures")))
    message.thinking = _thinking(record.get("thinking"))
    message.is_edited, message.is_missing = record.get("edited") is True, record.get("missing") is True
    message.ids = _ids(record)
    message.raw = raw if isinstance(raw, str) else text
    message.calls, message.calls_at = _calls(record), min(_count(record, "calls_at"), len(message.raw))
    return message


def _calls(record: Record) -> tuple[ToolCall, ...]:
    found = []
    for one in _objects(record, "calls"):
        sound = call(one.get("name"), _text(one, "arguments"))
        if sound is None:
            raise UnsoundRecordError
        found.append(ToolCall(sound.name, sound.arguments, _line(one, "id")))
    return tuple(found)


def _results(record: Record) -> tuple[CallResult, ...]:
    items = _objects(record, "results")
    _require(all(NAME.fullmatch(_text(one, "name")) for one in items))
    return tuple(CallResult(_text(one, "name"), clean_text(_text(one, "text")), _line(one, "id")) for one in items)


def _objects(record: Record, name: str) -> list[Record]:
    items: list[Record] = record.get(name, [])
    _require(isinstance(items, list) and len(items) <= MOST_CALLS and all(isinstance(one, dict) for one in items))
    return items


def _figures(values: Any) -> ReplyFigures | None:
    if values is None:
        return None
    _require(isinstance(values, dict))
    span: Any = values.get("range_tps")
    has_range = isinstance(span, list) and len(span) == 2 and all(_is_number(one) for one in span)
    checked: dict[str, Any] = {name: _number(values, name) for name in ("first_token_s", "decode_tps")}
    for name in ("tokens", "prompt_tokens", "reused_tokens", "guessed_tokens"):
        checked[name] = _count(values, name)
    return ReplyFigures(**checked, range_tps=(float(span[0]), float(span[1])) if has_range else None)


def _thinking(values: Any) -> Thinking | None:
    if values is None:
        return None
    _require(isinstance(values, dict))
    duration_s = _number(values, "duration_s") or 0.0
    is_closed = values.get("is_closed") is True
    return Thinking(clean_text(_text(values, "text")), _count(values, "tokens"), duration_s, is_closed)


def _require(is_sound: bool) -> None:
    if not is_sound:
        raise UnsoundRecordError


def _text(values: Record, name: str) -> str:
    value: str | None = values.get(name)
    _require(value is None or isinstance(value, str))
    return value or ""


def _line(values: Record, name: str) -> str:
    return clean_line(_text(values, name), _MOST_NAME_CHARS)


def _count(values: Record, name: str) -> int:
    value: int = values.get(name, 0)
    _require(type(value) is int and 0 <= value <= _LARGEST)
    return value


def _number(values: Record, name: str) -> float | None:
    value = values.get(name)
    _require(value is None or _is_number(value))
    return None if value is None else float(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _LARGEST and math.isfinite(value) and value >= 0


def _ids(values: Record) -> tuple[int, ...]:
    ids = values.get("ids")
    if ids is None:
        return ()
    _require(isinstance(ids, list) and all(type(one) is int and 0 <= one < _LARGEST for one in ids))
    return tuple(ids)

"""Damaged conversation logs: never a wrong word, never an exception, and what is said afterwards is read again.

What is said carries its own proof: a conversation's number, a number that grows, and a checksum. So a message that is
shown tells whether somebody wrote it, whole, and when. How much can be asked depends on what became of the log's lines:

=========  ==============================================================================================
in order   sound lines are some of one log's, in their order: messages are some of that log's, in their order
moved      sound lines were swapped or doubled, or are another log's: every message was written, whole
forged     sound checksums over anything: no exception, clean text
=========  ==============================================================================================
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from app.conversation import ChatMessage, Conversation, Ending, ReplyFigures, Role
from app.conversations.log_file import LogRefusedError
from app.conversations.records import read_record, write_record
from app.conversations.replay import head_record, message_record
from app.conversations.store import LOG_NAME, Opened, Store
from app.thinking import Thinking
from tests.fuzz.mutation import edge, mutate_bytes
from tests.fuzz.target import Fault, Target, Watch, require_clean_line

MOVED_LINES_KEEP_THEIR_ORDER = False
"""Whether messages must be in order even where lines were: records carry no number that would tell."""
LOST_PARTS_ARE_NOTICED = False
"""Whether an interrupted reply of which a part's line vanished without a trace must not be shown joined: same reason.
Over a line that stands there damaged none may be joined in any case."""
AT = "2026-11-21T10:00:00+00:00"
_ID = "000001"
_N_LOGS = 6
_CPU_S, _MEMORY_BYTES = 2.0, 64 << 20
_MOST_BYTES = 1 << 18
_QUESTION = re.compile(r"(q(\d+)\.(\d+) [a-z ]*)#([0-9a-f]{8})")
_PIECE = re.compile(r"(<(\d+)\.(\d+)\.(\d+)[.!])#([0-9a-f]{8})>")
_WORDS = ("why", "is", "the", "fan", "so", "loud", "and", "what", "helps")


class _Writer:
    """Writes one log as the journal would, with things that happen at random, the same for the same number."""

    def __init__(self, number: int) -> None:
        self._rng, self._number, self._said = Random(number), number, 0
        self._conversation = Conversation("Be brief." if number % 2 else None)
        self.records: list[dict[str, Any]] = []
        self._write(head_record(self._conversation.system, AT))
        self._write({"k": "model", "name": "Tiny", "path": "/models/tiny.gguf"})

    def _write(self, record: dict[str, Any]) -> None:
        # No reader asks for it; it makes every line one of its kind, so that one that was moved is known.
        self.records.append({**record, "line": f"{self._number}.{len(self.records)}"})

    def lines(self) -> list[bytes]:
        """A conversation of some turns."""
        for _ in range(self._rng.randrange(3, 9)):
            self._turn()
        return [write_record(record) for record in self.records]

    def _turn(self) -> None:
        rng, messages = self._rng, self._conversation.messages
        happens = rng.randrange(7)
        if happens == 0 and messages:
            n = rng.randrange(0, len(messages), 2)
            self._write({"k": "try", "text": "again"})
            self._write({"k": "keep", "n": n})
            self._conversation.cut(n)
        elif happens == 1:
            self._write({"k": "title", "text": f"A title {self._said}"})
        elif happens == 2 and len(messages) > 2:
            self._write({"k": "drop", "n": 2})
        elif happens == 3:
            self._write({"k": "try", "text": "tried"})
            self._write({"k": "back"})
        self._ask()
        self._answer()

    def _next(self) -> int:
        self._said += 1
        return self._said

    def _ask(self) -> None:
        text = question(self._number, self._next(), " ".join(self._rng.sample(_WORDS, 4)))
        self._write(message_record(self._conversation.add_user(text), self._said, AT))

    def _answer(self) -> None:
        rng, number = self._rng, self._next()
        n_pieces = rng.randrange(1, 6)
        pieces = [piece(self._number, number, at, at == n_pieces - 1) for at in range(n_pieces)]
        is_cut = rng.random() < 0.25
        if is_cut or rng.random() < 0.5:
            for at, text in enumerate(pieces[:-1] if is_cut else pieces):
                self._write({"k": "part", "text": text, "thought": "", "ids": [at], "raw": text, "edited": False})
        if is_cut:
            self._conversation.messages.append(ChatMessage(Role.ASSISTANT, "".join(pieces[:-1]), Ending.INTERRUPTED))
            if n_pieces == 1:  # nothing came
                self._conversation.messages.pop()
            return
        figures = ReplyFigures(n_pieces, 0.5, 4.0, 12, 3, (3.0, 5.0))
        thinking = Thinking("hm", 2, 0.5, True) if rng.random() < 0.3 else None
        reply = self._conversation.add_reply("".join(pieces), Ending.COMPLETE, figures, thinking)
        self._write(message_record(reply, 0, AT))


def question(log: int, number: int, words: str) -> str:
    """What a user says: provably of this log, and the so manyeth message in it."""
    text = f"q{log}.{number} {words} "
    return f"{text}#{zlib.crc32(text.encode()):08x}"


def piece(log: int, number: int, at: int, is_last: bool) -> str:
    """A part of a reply, which says where it belongs and whether it is the last."""
    text = f"<{log}.{number}.{at}{'!' if is_last else '.'}"
    return f"{text}#{zlib.crc32(text.encode()):08x}>"


@lru_cache(maxsize=1)
def logs() -> list[list[bytes]]:
    """The lines of sound logs."""
    return [_Writer(number).lines() for number in range(_N_LOGS)]


def seeds() -> list[bytes]:
    """The sound logs."""
    return [b"".join(lines) for lines in logs()]


# ---- damage


def mutate(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Damage bytes, or move, copy and forge lines."""
    choice = rng.randrange(8)
    if choice < 4:
        return mutate_bytes(rng, data, others)[:_MOST_BYTES]
    lines = data.splitlines(keepends=True)
    for _ in range(rng.randrange(1, 4)):
        _change_lines(rng, lines, rng.choice(others).splitlines(keepends=True), may_forge=choice == 7)
    return b"".join(lines)[:_MOST_BYTES]


def _change_lines(rng: Random, lines: list[bytes], foreign: list[bytes], may_forge: bool) -> None:
    at = rng.randrange(len(lines) + 1)
    action = rng.randrange(7)
    if may_forge and at < len(lines):
        lines[at] = _forged(rng, lines[at])
    elif action in (0, 1):
        del lines[at : at + 1]
    elif action == 2:
        lines[at:at] = lines[at : at + 1]
    elif action == 3 and len(lines) > 1:
        other = rng.randrange(len(lines))
        at = min(at, len(lines) - 1)
        lines[at], lines[other] = lines[other], lines[at]
    elif action == 4 and foreign:
        lines.insert(at, rng.choice(foreign))
    elif at < len(lines):
        lines[at] = mutate_bytes(rng, lines[at], ())


def _forged(rng: Random, line: bytes) -> bytes:
    """The record with other values, and a checksum that fits."""
    values: Any = read_record(line.rstrip(b"\n"))
    if not values:
        return line
    name = rng.choice([*values, "k", "version", "text"])
    values[name] = rng.choice(
        (None, True, -1, 0.5, edge(rng), "", "x" * 5000, "\x1b]0;x\x07\u202e\ud800", [], [1, -1], [[]], {}, {"n": 1},
         "say", "part", "reply", "keep", "unheard-of", 1 << 70, 1e308)
    )  # fmt: skip
    return write_record(values)


# ---- what must hold


def run(data: bytes, place: Path, watch: Watch) -> str:
    """Read the log, look at what is shown, go on with it, and read it again."""
    store = Store(place / "conversations")
    log = place / "conversations" / _ID / LOG_NAME
    log.parent.mkdir(parents=True, mode=0o700)
    log.write_bytes(data)
    trust = trust_in(data)
    with watch.bounded("reading", _CPU_S, _MEMORY_BYTES):
        list(store.entries())
        try:
            opened = store.open(_ID)
        except LogRefusedError as error:
            return f"{trust}: refused: {require_clean_line(str(error))}"
    try:
        messages = opened.saved.conversation.messages
        judge(messages, trust)
        if trust == "in order":
            require_no_joint_over_damage(messages, data)
        require_clean(opened)
        outcome = f"{trust}: {'damaged' if opened.notice else 'read'}"
        if opened.log is None:
            return f"{outcome}, a copy"
        _go_on(opened, messages)
    finally:
        if opened.log is not None:
            opened.log.close()
    again = store.read(_ID).conversation.messages
    expected = _after(messages)
    if _said(again) != expected:
        raise Fault(f"after going on there are {_said(again)} instead of {expected}")
    return outcome + ("" if messages else ", nothing left")


def trust_in(data: bytes) -> str:
    """What became of the sound lines, see above."""
    found = [line + b"\n" for line in data.split(b"\n") if read_record(line) is not None]
    places = {line: (number, at) for number, lines in enumerate(logs()) for at, line in enumerate(lines)}
    if any(line not in places for line in found):
        return "forged"
    numbers = [places[line] for line in found]
    is_one_log = len({number for number, _ in numbers}) <= 1
    in_order = _is_growing([at for _, at in numbers])
    return "in order" if is_one_log and in_order else "moved"


def _is_growing(numbers: Sequence[int]) -> bool:
    return sorted(set(numbers)) == list(numbers)


def judge(messages: Sequence[ChatMessage], trust: str) -> None:
    """Check that everything shown was said, whole, and in this order."""
    if trust == "forged":
        return
    said = [_proved(message, trust) for message in messages]
    if trust == "moved" and not MOVED_LINES_KEEP_THEIR_ORDER:
        return
    if len({log for log, _ in said}) > 1:
        raise Fault(f"messages of several conversations are shown as one: {said}")
    if not _is_growing([number for _, number in said]):
        raise Fault(f"messages are shown out of their order: {said}")


def require_no_joint_over_damage(messages: Sequence[ChatMessage], data: bytes) -> None:
    """Check that no reply's parts were joined where the line between them is there and damaged."""
    lines = data.split(b"\n")
    for message in messages:
        for expected, match in enumerate(_PIECE.finditer(message.text)):
            at = next((n for n, line in enumerate(lines) if match[0].encode() in line and read_record(line)), 0)
            if int(match[4]) != expected and at and read_record(lines[at - 1]) is None:
                raise Fault(f"a reply's parts are joined over a damaged line: {message.text!r}")


def _proved(message: ChatMessage, trust: str) -> tuple[int, int]:
    """Whose message it is and which; raises where nobody wrote it like that."""
    if message.role is Role.USER:
        match = _QUESTION.fullmatch(message.text)
        if match is None or f"{zlib.crc32(match[1].encode()):08x}" != match[4]:
            raise Fault(f"the user never said {message.text!r}")
        return int(match[2]), int(match[3])
    found = list(_PIECE.finditer(message.text))
    if not found or "".join(match[0] for match in found) != message.text:
        raise Fault(f"the model never said {message.text!r}")
    if any(f"{zlib.crc32(match[1].encode()):08x}" != match[5] for match in found):
        raise Fault(f"the model never said {message.text!r}")
    is_whole = [int(match[4]) for match in found] == list(range(len(found)))
    is_one = len({match.group(2, 3) for match in found}) == 1
    must_be_whole = message.ending is not Ending.INTERRUPTED or LOST_PARTS_ARE_NOTICED
    if not (is_whole and is_one) and must_be_whole:
        raise Fault(f"a reply is put together from what does not belong together ({trust}): {message.text!r}")
    if message.ending is Ending.COMPLETE and "!" not in found[-1][0]:
        raise Fault(f"a whole reply lacks its end: {message.text!r}")
    return int(found[0][2]), int(found[0][3])


def require_clean(opened: Opened) -> None:
    """Check that nothing of it can harm a screen."""
    saved = opened.saved
    for line in (saved.shown_title, saved.model, saved.began, saved.changed, opened.notice):
        if not line.isprintable():
            raise Fault(f"a line that is shown holds control characters: {line!r}")
    for message in saved.conversation.messages:
        if any(not char.isprintable() and char not in "\n\t\u200c\u200d\u200e\u200f\u061c" and ord(char) < 0xA0
               for char in message.text):  # fmt: skip
            raise Fault(f"a message holds control characters: {message.text!r}")


def _go_on(opened: Opened, messages: Sequence[ChatMessage]) -> None:
    """Append one more turn, as the journal does."""
    assert opened.log is not None
    conversation = Conversation()
    records = [] if opened.log.size else [head_record(None, AT)]
    records.append(message_record(conversation.add_user(question(99, 1, "and then")), 99, AT))
    reply = conversation.add_reply(piece(99, 2, 0, True), Ending.COMPLETE, None)
    records.append(message_record(reply, 0, AT))
    opened.log.append([write_record(record) for record in records])
    opened.log.sync()


def _after(messages: Sequence[ChatMessage]) -> list[str]:
    """What must be there after one more turn: an unanswered message before it leaves the conversation."""
    before = _said(messages)
    if messages and messages[-1].role is Role.USER:
        before.pop()
    return [*before, question(99, 1, "and then"), piece(99, 2, 0, True)]


def _said(messages: Sequence[ChatMessage]) -> list[str]:
    return [message.text for message in messages]


TARGET = Target(
    seeds,
    mutate,
    run,
    source=("app/conversations/replay.py", "app/conversations/records.py", "app/conversations/log_file.py",
            "app/conversations/store.py", "app/conversations/summary.py"),
)  # fmt: skip

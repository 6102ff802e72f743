"""Damaged conversation logs: never a wrong word, never an exception, and what is said afterwards is read again.

What is said carries its own proof (see ``log_corpus``). So a message that is shown tells whether somebody wrote it,
whole, and behind which other. How much can be asked depends on what became of the log's lines:

=============  ==========================================================================================
in order       sound lines are some of one log's, in their order: messages are some of that log's, in their order
moved          sound lines were swapped or doubled, or are another log's: every message was written, whole
forged         sound checksums over anything: no exception, clean text
=============  ==========================================================================================

Where every record says what it was written behind, and where older ones are in order with a damaged line in place of
every lost one, two messages stand side by side, and two parts in one reply, only if they did when they were written:
otherwise a gap is told between them. Older records cannot tell that lines vanished or were moved.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from app.conversations.conversation import ChatMessage, Conversation, Ending, Role
from app.conversations.log_file import LogRefusedError, read_only
from app.conversations.records import read_record, write_record
from app.conversations.store import LOG_NAME, Opened, Store
from app.text.record import record
from tests.fuzz.log_corpus import ID, PATIENCE_S, PIECE, QUESTION, journal, piece, question, sound_logs
from tests.fuzz.mutation import edge, mutate_bytes
from tests.fuzz.target import Fault, Target, Watch, require_clean_line

_CPU_S, _MEMORY_BYTES = 2.0, 64 << 20
_MOST_BYTES = 1 << 18
_SAID_MISSING = "what was said"
_GAP = "(missing)"


def seeds() -> list[bytes]:
    """The sound logs."""
    return [b"".join(log.lines) for log in sound_logs()]


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


@record
class Trust:
    """Outcome for a log's lines.

    Attributes:
        kind: see above.
        is_sure: whether what stands side by side must have done so.
    """

    kind: str
    is_sure: bool

    @property
    def outcome(self) -> str:
        """In words."""
        return f"{self.kind}{', sure' if self.is_sure else ''}"


def run(data: bytes, place: Path, watch: Watch) -> str:
    """Read the log, look at what is shown, go on with it, and read it again."""
    store = Store(place / "conversations")
    log = place / "conversations" / ID / LOG_NAME
    log.parent.mkdir(parents=True, mode=0o700)
    log.write_bytes(data)
    trust = trust_in(data)
    with watch.bounded("reading", _CPU_S, _MEMORY_BYTES):
        list(store.entries())
        try:
            opened = store.open(ID)
        except LogRefusedError as error:
            return f"{trust.outcome}: refused: {require_clean_line(str(error))}"
    outcome = f"{trust.outcome}: {'damaged' if opened.notice else 'read'}"
    if opened.log is None:
        raise Fault(f"nobody has it, but it cannot be gone on with: {opened.obstacle}")
    try:
        judge(opened.saved.conversation.messages, trust)
        require_clean(opened)
        require_sound_context(opened.saved.conversation)
    except BaseException:
        opened.log.close()
        raise
    expected = _after(opened.saved.conversation)
    _go_on(store, opened)
    found = read_only(log)
    shown = _shown(found.saved.conversation.messages)
    if shown != expected:
        raise Fault(f"after going on there is {_word(shown)} instead of {_word(expected)}")
    if _SAID_MISSING in opened.notice and _SAID_MISSING not in found.damage:
        raise Fault(f"after going on nobody says any more: {opened.notice}")
    require_sound_context(found.saved.conversation)
    return outcome + (", gaps" if _GAP in expected else "") + ("" if len(expected) > 2 else ", nothing left")


def trust_in(data: bytes) -> Trust:
    """Outcome for the sound lines, see above."""
    lines = [line + b"\n" for line in data.split(b"\n")[:-1]]
    found = [line for line in lines if read_record(line[:-1]) is not None]
    if any(line not in _all_lines() for line in found):
        return Trust("forged", False)
    has_links = all(line in _linked_lines() for line in found)
    in_order = [log for log in sound_logs() if _are_some_of(found, log.lines)]
    is_traced = any(_are_traced(lines, log.lines) for log in in_order)
    return Trust("in order" if in_order else "moved", has_links or is_traced)


@lru_cache(maxsize=1)
def _all_lines() -> frozenset[bytes]:
    return frozenset(line for log in sound_logs() for line in log.lines)


@lru_cache(maxsize=1)
def _linked_lines() -> frozenset[bytes]:
    return frozenset(line for log in sound_logs() if log.has_links for line in log.lines)


def _are_some_of(found: Iterable[bytes], lines: Iterable[bytes]) -> bool:
    """Whether they are some of these, in their order."""
    left = iter(lines)
    return all(line in left for line in found)


def _are_traced(damaged: Sequence[bytes], lines: Sequence[bytes]) -> bool:
    """Whether at least one damaged line stands wherever lines are lost, but at the end."""
    at, may_lose = 0, False
    for line in damaged:
        if read_record(line[:-1]) is None:
            may_lose = True
        elif may_lose and line in lines[at:]:
            at, may_lose = lines.index(line, at) + 1, False
        elif at < len(lines) and line == lines[at]:
            at += 1
        else:
            return False
    return True


def judge(messages: Sequence[ChatMessage], trust: Trust) -> None:
    """Check that everything shown was said, whole, and that what stands side by side did so."""
    if trust.kind == "forged":
        return
    said = [None if message.is_missing else _proved(message, trust) for message in messages]
    there = [one for n, one in enumerate(said) if one is not None and not _is_known_twice(n, messages, said)]
    if trust.kind == "in order" and len({log for log, _ in there}) > 1:
        raise Fault(f"messages of several conversations are shown as one: {_listed(said)}")
    if trust.kind == "in order" and not _is_growing([number for _, number in there]):
        raise Fault(f"messages are shown out of their order: {_listed(said)}")
    if trust.is_sure:
        _require_told_gaps(said)


_Place = tuple[int, int]
"""A message's log and number."""


def _is_known_twice(n: int, messages: Sequence[ChatMessage], said: Sequence[_Place | None]) -> bool:
    """Whether a message is the beginning of a reply that comes whole later: older parts do not say whose they are."""
    one = said[n]
    is_old = one is not None and not sound_logs()[one[0]].has_links
    return is_old and messages[n].ending is Ending.INTERRUPTED and one in said[n + 1 :]


def _is_growing(numbers: Sequence[int]) -> bool:
    return sorted(set(numbers)) == list(numbers)


def _require_told_gaps(said: Sequence[_Place | None]) -> None:
    """Check that every message stands behind the one that it was said behind, or behind a gap."""
    before: _Place | None = (0, 0)
    for one in said:
        if one is not None and before is not None:
            log, number = one
            if sound_logs()[log].before[number] != before[1] or (before[1] and before[0] != log):
                raise Fault(f"messages stand side by side that never did: {_listed(said)}")
        before = one


def _listed(said: Sequence[_Place | None]) -> str:
    """All in one word."""
    return ",".join("gap" if one is None else f"{one[0]}.{one[1]}" for one in said)


def _proved(message: ChatMessage, trust: Trust) -> tuple[int, int]:
    """Whose message it is and which; raises where nobody wrote it like that."""
    if message.role is Role.USER:
        match = QUESTION.fullmatch(message.text)
        if match is None or f"{zlib.crc32(match[1].encode()):08x}" != match[4]:
            raise Fault(f"the user never said {message.text!r}")
        return int(match[2]), int(match[3])
    found = list(PIECE.finditer(message.text))
    if not found or "".join(match[0] for match in found) != message.text:
        raise Fault(f"the model never said {message.text!r}")
    if any(f"{zlib.crc32(match[1].encode()):08x}" != match[5] for match in found):
        raise Fault(f"the model never said {message.text!r}")
    is_whole = [int(match[4]) for match in found] == list(range(len(found)))
    is_one = len({match.group(2, 3) for match in found}) == 1
    if not (is_whole and is_one) and (message.ending is not Ending.INTERRUPTED or trust.is_sure):
        raise Fault(f"a reply is put together from what does not belong together: {message.text!r}")
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


def require_sound_context(conversation: Conversation) -> None:
    """Check that the model is told of whole turns, and of nothing that is missing."""
    messages = conversation.messages
    if [message.role for message in messages] != [(Role.USER, Role.ASSISTANT)[n % 2] for n in range(len(messages))]:
        raise Fault(f"the sides do not take turns: {_word(_shown(messages))}")
    if any(message.is_missing for message in messages[conversation.n_dropped :]):
        raise Fault(f"the model is told of what is missing: {_word(_shown(messages))} from {conversation.n_dropped} on")


def _go_on(store: Store, opened: Opened) -> None:
    """One more turn, as the chat has it."""
    made, conversation = journal(store), opened.saved.conversation
    made.adopt(opened)
    conversation.add_user(*conversation.with_unanswered(question(99, 1, "and then")))
    made.note_asked(conversation, is_replacing=False)
    conversation.add_reply(piece(99, 2, 0, True), Ending.COMPLETE, None)
    made.note_settled(conversation)
    if trouble := made.close(PATIENCE_S):
        raise Fault(f"what is said afterwards is not saved: {trouble}")


def _after(conversation: Conversation) -> list[str]:
    """Messages that must be shown after one more turn: a message that nobody answered goes with the next one."""
    before, asked = _shown(conversation.messages), question(99, 1, "and then")
    if conversation.awaits_reply and not conversation.messages[-1].is_missing:
        asked = f"{before.pop()}\n\n{asked}"
    return [*before, asked, piece(99, 2, 0, True)]


def _shown(messages: Sequence[ChatMessage]) -> list[str]:
    return [_GAP if message.is_missing else message.text for message in messages]


def _word(shown: Sequence[str]) -> str:
    """All in one word, so that the same fault is told in the same words."""
    return "|".join(shown).replace(" ", "_")


TARGET = Target(
    seeds,
    mutate,
    run,
    source=("app/conversations/replay.py", "app/conversations/records.py", "app/conversations/log_file.py",
            "app/conversations/store.py", "app/conversations/summary.py"),
)  # fmt: skip

"""Sound conversation logs to damage, written by the program's own journal, and which message was said behind which.

What is said carries its own proof: a log's number, a number that grows, and a checksum. Half of the logs are as earlier
versions wrote them: their records do not say what they were written behind.
"""

from __future__ import annotations

import re
import tempfile
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random

from app.conversations.conversation import ChatMessage, Conversation, Ending, ReplyFigures, Role
from app.conversations.journal import Journal, Partial
from app.conversations.records import read_record, write_record
from app.conversations.store import LOG_NAME, Store
from app.conversations.thinking import Thinking

AT = "2026-11-21T10:00:00+00:00"
ID = "000001"
PATIENCE_S = 60.0
QUESTION = re.compile(r"(q(\d+)\.(\d+) [a-z ]*)#([0-9a-f]{8})")
PIECE = re.compile(r"(<(\d+)\.(\d+)\.(\d+)[.!])#([0-9a-f]{8})>")
_N_LOGS = 12
_FIRST_OLD = 6
_WORDS = ("why", "is", "the", "fan", "so", "loud", "and", "what", "helps")


@dataclass
class SoundLog:
    """A log, and what was said in it.

    Attributes:
        has_links: whether its records say what they were written behind.
        lines: with their newlines.
        before: by a message's number, that of the one that it was said behind; 0 for none.
    """

    has_links: bool
    lines: list[bytes] = field(default_factory=list)
    before: dict[int, int] = field(default_factory=dict)


@lru_cache(maxsize=1)
def sound_logs() -> list[SoundLog]:
    """The logs, the same at every call; a log's place is its number."""
    with tempfile.TemporaryDirectory(prefix="jalopy-fuzz-logs-") as directory:
        return [_Talk(number, Path(directory) / str(number)).log() for number in range(_N_LOGS)]


def journal(store: Store) -> Journal:
    """A journal that writes the same whenever it does."""
    made = Journal(store, lambda: AT)
    made.note_model("Tiny", "/models/tiny.gguf")
    return made


def question(log: int, number: int, words: str) -> str:
    """A user's message: names its log and its number in it."""
    text = f"q{log}.{number} {words} "
    return f"{text}#{zlib.crc32(text.encode()):08x}"


def piece(log: int, number: int, at: int, is_last: bool) -> str:
    """A part of a reply, which says where it belongs and whether it is the last."""
    text = f"<{log}.{number}.{at}{'!' if is_last else '.'}"
    return f"{text}#{zlib.crc32(text.encode()):08x}>"


class _Talk:
    """One conversation in which things happen at random, the same for the same number."""

    def __init__(self, number: int, root: Path) -> None:
        self._rng, self._number, self._said = Random(number), number, 0
        self._store = Store(root)
        self._journal = journal(self._store)
        self._conversation = Conversation("Be brief." if number % 2 else None)
        self._log = SoundLog(has_links=number < _FIRST_OLD)

    def log(self) -> SoundLog:
        for _ in range(self._rng.randrange(4, 10)):
            self._turn()
        assert self._journal.close(PATIENCE_S) == ""
        assert self._store.root is not None
        lines = (self._store.root / ID / LOG_NAME).read_bytes().splitlines(keepends=True)
        self._log.lines = lines if self._log.has_links else [_without_links(line) for line in lines]
        return self._log

    def _turn(self) -> None:
        happens = self._rng.randrange(9)
        if happens < 5 and self._conversation.messages and not self._conversation.awaits_reply:
            (self._again, self._edit, self._try, self._drop, self._rename)[happens]()
            return
        text = self._question()
        if happens == 5:
            self._journal.note_waiting(self._conversation, [text])
        self._conversation.add_user(text)
        self._note_place()
        self._journal.note_asked(self._conversation, is_replacing=False)
        if happens == 6:
            self._be_killed()
        else:
            self._answer()

    # ---- what happens

    def _again(self) -> None:
        """The last question is answered another time."""
        self._conversation.drop_reply()
        self._journal.note_asked(self._conversation, is_replacing=True)
        self._answer()

    def _edit(self) -> None:
        """A question is asked otherwise."""
        self._ask_instead()
        self._note_place()
        self._answer()

    def _try(self) -> None:
        """The same, and it is stopped before its reply begins."""
        messages, n_dropped = list(self._conversation.messages), self._conversation.n_dropped
        self._ask_instead()
        self._conversation.messages[:], self._conversation.n_dropped = messages, n_dropped
        self._journal.note_settled(self._conversation)

    def _ask_instead(self) -> None:
        at = self._rng.randrange(self._conversation.n_dropped, len(self._conversation.messages), 2)
        self._conversation.cut(at)
        self._conversation.add_user(self._question())
        self._journal.note_asked(self._conversation, is_replacing=True)

    def _drop(self) -> None:
        if self._conversation.n_dropped + 2 < len(self._conversation.messages):
            self._conversation.n_dropped += 2
            self._journal.note_dropped(self._conversation)

    def _rename(self) -> None:
        self._journal.rename(self._conversation, f"A title {self._said}")

    def _be_killed(self) -> None:
        """Only parts of the reply came, or none; the next program goes on."""
        number, pieces = self._pieces()
        self._flush(pieces[:-1])
        if len(pieces) > 1:
            self._conversation.messages.append(ChatMessage(Role.ASSISTANT, "".join(pieces[:-1]), Ending.INTERRUPTED))
            self._note_place(number)
        assert self._journal.close(PATIENCE_S) == ""
        opened = self._store.open(ID)
        assert not opened.notice
        self._conversation = opened.saved.conversation
        self._journal = journal(self._store)
        self._journal.adopt(opened)

    def _answer(self) -> None:
        number, pieces = self._pieces()
        if self._rng.random() < 0.7:
            self._flush(pieces)
        figures = ReplyFigures(len(pieces), 0.5, 4.0, 12, 3, (3.0, 5.0))
        thinking = Thinking("hm", 2, 0.5, True) if self._rng.random() < 0.3 else None
        ending = Ending.STOPPED if len(pieces) > 1 and self._rng.random() < 0.3 else Ending.COMPLETE
        text = "".join(pieces[:-1] if ending is Ending.STOPPED else pieces)
        self._conversation.add_reply(text, ending, figures, thinking)
        self._note_place(number)
        self._journal.note_settled(self._conversation)

    def _flush(self, pieces: list[str]) -> None:
        for n in range(1, len(pieces) + 1):
            text = "".join(pieces[:n])
            self._journal.flush(self._conversation, Partial(text, "", tuple(range(n)), text))

    # ---- its words

    def _question(self) -> str:
        self._said += 1
        return question(self._number, self._said, " ".join(self._rng.sample(_WORDS, 4)))

    def _pieces(self) -> tuple[int, list[str]]:
        self._said += 1
        n = self._rng.randrange(1, 6)
        return self._said, [piece(self._number, self._said, at, at == n - 1) for at in range(n)]

    def _note_place(self, number: int = 0) -> None:
        """Note what the last message, which has this number or the newest one, was said behind."""
        messages = self._conversation.messages
        self._log.before[number or self._said] = number_of(messages[-2]) if len(messages) > 1 else 0


def number_of(message: ChatMessage) -> int:
    """The number of a message that was said."""
    match = QUESTION.match(message.text) or PIECE.match(message.text)
    assert match is not None
    return int(match[3])


def _without_links(line: bytes) -> bytes:
    record = read_record(line[:-1])
    assert record is not None
    gone = ("on", "after") if record["k"] == "part" else ("on",)
    return write_record({name: value for name, value in record.items() if name not in gone})

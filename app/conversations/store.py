"""All conversations in one database: listing, searching, opening, renaming and deleting them.

``Store`` finds and reads. ``OpenConversation`` is a conversation that is open here and nowhere else: ``apply``
carries out what ``put``, ``keep``, ``piece`` and ``note`` return, in one transaction. A message is
a row, a running reply a row for each piece. All is read as if a stranger had written it: sizes are
bounded, texts cleaned, and a row that makes no sense is a missing message. A conversation's id is
its number, with six figures at least.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from app.conversations import locks
from app.conversations.conversation import ChatMessage, Conversation, Ending, Role
from app.conversations.database import (
    BACKUPS,
    NAME,
    DamagedError,
    can_search,
    cause_of,
    connect,
    open_file,
    transact,
)
from app.conversations.locks import InUseError, Lock, StoreError, take
from app.conversations.message_row import UnsoundError, are_ids, message_of, row_of
from app.conversations.upkeep import check_and_copy, repair, run_transaction, take_repair_notice
from app.program import notices, paths
from app.program.remote_model import ModelPlace, is_remote
from app.reply.thinking import Thinking
from app.text.chips import CHIP
from app.text.clean_text import clean_line, clean_text
from app.text.record import record

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

MOST_TITLE_CHARS = 120
MOST_CONVERSATION_BYTES = 64 << 20
"""A larger one is neither written nor read: weeks of writing do not fill it."""
MOST_MESSAGES = 100_000
_MOST_PATH_CHARS = 4096
_MOST_WAITING = 64
_LARGEST = 1 << 53
_SNIPPET_CHARS = 160
_INDEXED_CHARS = 3
_MOST_PARTS = 50
"""The index knows so many characters in a row; shorter words are looked for in all texts."""
_ID = re.compile(r"[0-9]{6,12}")
IS_CONVERSATION = "id BETWEEN 1 AND 999999999999"
"""Of rows: 0 is of no conversation, and no id has more digits."""
_OPENING_CHIPS = re.compile(rf"^(?:{CHIP.pattern}\s*)+")

Change = Callable[["sqlite3.Connection", int], object]
"""What is to be done with the conversation of a number."""


@record
class ConversationEntry:
    """One conversation of the list.

    All text is clean and of one line, but for ``model_path``, which is a path.
    """

    id: str
    title: str = ""
    began: str = ""
    changed: str = ""
    """Wall time, ISO, only for display."""
    model: str = ""
    model_path: str = ""
    """Who answered last."""
    n_messages: int = 0
    """With those that wait for their turn."""
    tokens: int = 0
    """Generated in all replies."""
    text_bytes: int = 0
    state_bytes: int = 0
    """Sizes of the conversation and of the saved states of its cache, shared ones included."""
    snippet: str = ""
    """Words that were searched, in their place in the text, clean and of one line; "" where the
    title has them."""


@dataclass
class SavedConversation:
    """A conversation with what is known of it."""

    conversation: Conversation = field(default_factory=Conversation)
    title: str = ""
    began: str = ""
    changed: str = ""
    model: str = ""
    model_path: str = ""
    unsent: str = ""
    """What the user had sent in place of something, and that had not begun to be answered."""
    forked_from: str = ""
    """Id of another one."""
    waiting: list[str] = field(default_factory=list)
    """What the user had sent while the engine was busy, oldest first."""
    has_pieces: bool = False
    """Whether the last message is a reply that was interrupted, and known by its pieces."""

    @property
    def not_sent(self) -> str:
        """Everything that was sent and is not in the conversation, for the user to send again; ""
        where all is."""
        return "\n\n".join(filter(None, (self.unsent, *self.waiting)))

    @property
    def damage(self) -> str:
        """How much of it is missing, and what that means for the model; "" where all is well."""
        n = sum(message.is_missing for message in self.conversation.messages)
        if n == 1:
            counted = "1 message is"
        else:
            counted = f"{n} messages are"
        if n:
            return f"{counted} missing, which cannot be read; the model goes on after the last one"
        return ""


@record
class LoadedConversation:
    """A conversation that was opened."""

    id: str
    saved: SavedConversation
    open_conversation: OpenConversation | None
    """None for one that can only be copied."""
    notice: str = ""
    """A line about what was found; "" for nothing."""
    obstacle: str = ""
    """Why it can only be copied; "" if it can be gone on with."""


# ---- changes


def put_message(place: int, message: ChatMessage, at: str) -> Change:
    """Write a message at its place, from 0 on, instead of all from there on; ``at``: the wall
    time."""
    role, tokens, n_bytes, text, more = row_of(message)

    def change(db: sqlite3.Connection, number: int) -> None:
        keep_messages(place)(db, number)
        row = (number, place, role, tokens, n_bytes, text, more)
        columns = "conversation, place, role, tokens, n_bytes, text, more"
        done = db.execute(f"INSERT INTO message({columns}) VALUES(?, ?, ?, ?, ?, ?, ?)", row)
        if can_search(db):
            db.execute("INSERT INTO search(rowid, text) VALUES(?, ?)", (done.lastrowid, text))
        db.execute("UPDATE conversation SET changed=? WHERE id=?", (at, number))

    return change


def keep_messages(n_messages: int) -> Change:
    """Keep the first messages only, and nothing of a reply that was being written or of an edit
    that was tried."""

    def change(db: sqlite3.Connection, number: int) -> None:
        rest = (number, n_messages)
        if can_search(db):
            old = "SELECT 'delete', id, text FROM message WHERE conversation=? AND place>=?"
            db.execute(f"INSERT INTO search(search, rowid, text) {old}", rest)
        db.execute("DELETE FROM message WHERE conversation=? AND place>=?", rest)
        db.execute("DELETE FROM piece WHERE conversation=?", (number,))
        db.execute("UPDATE conversation SET unsent='' WHERE id=? AND unsent<>''", (number,))

    return change


def add_piece(text: str, thought: str, ids: Sequence[int], raw: str, is_edited: bool) -> Change:
    """Write more of the reply that is being written."""
    more = json.dumps([text, thought, list(ids), raw, is_edited], separators=(",", ":"))
    return lambda db, number: db.execute(
        "INSERT INTO piece(conversation, more) VALUES(?, ?)", (number, more)
    )


def set_columns(**values: object) -> Change:
    """Write columns of the conversation's row."""
    columns = ", ".join(f"{name}=?" for name in values)  # names are the program's own
    row = [
        one.encode("utf-8", "replace").decode() if isinstance(one, str) else one
        for one in values.values()
    ]
    return lambda db, number: db.execute(
        f"UPDATE conversation SET {columns} WHERE id=?", (*row, number)
    )


def mark_used(db: sqlite3.Connection, number: int) -> None:
    """Make the conversation the one that was used last."""
    db.execute(
        (
            "UPDATE conversation SET used=(SELECT max(coalesce(used, 0))+1 FROM conversation) "
            "WHERE id=?"
        ),
        (number,),
    )


def touch(db: sqlite3.Connection, number: int) -> None:
    """Change nothing, but write: with this the disk is told to keep all that was written before."""
    db.execute("UPDATE conversation SET changed=changed WHERE id=?", (number,))


class OpenConversation:
    """A conversation that is open here alone, until it is closed; without a number it begins with
    its first change."""

    def __init__(self, root: Path | None, number: int = 0, lock: Lock | None = None) -> None:
        self._root = root
        self.number = number
        self._lock = lock
        self._db: sqlite3.Connection | None = None

    @property
    def id(self) -> str:
        """The conversation's id; "" before it is on disk."""
        if self.number:
            return id_of(self.number)
        return ""

    @property
    def is_locked(self) -> bool:
        """Whether other programs find it in use."""
        return self._lock is None or self._lock.is_known

    def apply(self, changes: Sequence[Change], is_durable: bool) -> None:
        """Make all changes or none: a kill takes none away, nor, if ``is_durable``, a power cut.

        Raises StoreError.
        """
        try:
            self._apply(changes, is_durable)
        except DamagedError:
            self.close()
            if self._root is not None:
                repair(self._root)
            self._apply(changes, is_durable)

    def _apply(self, changes: Sequence[Change], is_durable: bool) -> None:
        if self._db is None:
            self._db = connect(self._root)
        try:
            self.number = transact(
                self._db, lambda db: self._change(db, changes, is_durable), True, is_durable
            )
        except BaseException:
            if not self.number and self._lock is not None:  # the next try may begin another one
                self._lock.close()
                self._lock = None
            raise

    def _change(self, db: sqlite3.Connection, changes: Sequence[Change], is_durable: bool) -> int:
        # Its row may be lost in a database that was mended.
        row = (self.number or None,)
        begun = db.execute(
            "INSERT OR IGNORE INTO conversation(id, title, n_dropped) VALUES(?, '', 0)", row
        )
        number = self.number or int(begun.lastrowid or 0)
        if self._lock is None and self._root is not None:
            try:
                self._lock = take(self._root, number)
            except OSError as error:
                raise StoreError(cause_of(error)) from None
        for change in changes:
            change(db, number)
        if is_durable:
            size = db.execute(
                "SELECT total(n_bytes) FROM message WHERE conversation=?", (number,)
            ).fetchone()[0]
            if (size or 0) > MOST_CONVERSATION_BYTES:
                raise StoreError(
                    f"the conversation is full, at {MOST_CONVERSATION_BYTES >> 20} MiB (go on "
                    f"in a new one)"
                )
        return number

    def close(self) -> None:
        """Let go of it."""
        db = self._db
        self._db = None
        lock = self._lock
        self._lock = None
        if db is not None:
            with suppress(Exception):  # all that was said to be written is
                db.close()
        if lock is not None:
            lock.close()


class Store:
    """The conversations below one directory, by default in the platform's place.

    Methods raise StoreError.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or paths.conversations_dir()
        self._states = paths.states_dir()
        self._has_looked_for_notice = False

    def select(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Return what reading came to; None where nothing was ever saved, and nothing is
        created."""
        is_there = self.root is not None and any(
            os.path.lexists(self.root / one) for one in (NAME, *BACKUPS)
        )
        if is_there:
            return run_transaction(self.root, work)
        return None

    def _rows(self, sql: str, *values: object) -> list[Any]:
        return self.select(lambda db: db.execute(sql, values).fetchall()) or []

    def take_notice(self) -> str:
        """Return a line about a damaged database that this process mended, once; "" for nothing."""
        if self.root is not None:
            return notices.take(self.root / NAME)
        return ""

    def take_chat_notice(self) -> str:
        """Return the same for a chat, and what was mended since the last chat.

        "" if there is nothing to show.
        """
        line = self.take_notice()
        if self.root is not None and (line or not self._has_looked_for_notice):
            self._has_looked_for_notice = True
            line = take_repair_notice(self.root) or line
        return line

    def check_and_copy(self, now_s: float) -> None:
        """Check the database and copy it, if that was not done for a day; takes a second for 100
        MB."""
        check_and_copy(self.root, now_s)

    # ---- finding

    def ids(self) -> list[str]:
        """Return the ids of all conversations, oldest first."""
        rows = self._rows(f"SELECT id FROM conversation WHERE {IS_CONVERSATION} ORDER BY id")
        return [id_of(number) for (number,) in rows]

    def entries(self) -> list[ConversationEntry]:
        """Return all conversations, the last one used first."""
        sql = (
            "SELECT c.id, c.title, c.began, c.changed, c.model, c.model_path, c.waiting, "
            "count(m.id)"
            " + EXISTS(SELECT 1 FROM piece p WHERE p.conversation=c.id), total(m.tokens), "
            "total(m.n_bytes)"
            " FROM conversation c LEFT JOIN message m ON m.conversation=c.id"
            f" WHERE c.{IS_CONVERSATION} GROUP BY c.id ORDER BY c.used DESC, c.id DESC"
        )
        rows = self._rows(sql)
        of_each = self.segments_of([row[0] for row in rows])
        return [
            replace(_entry(row), state_bytes=sum(map(size_of, of_each.get(row[0], ()))))
            for row in rows
        ]

    def search(self, typed: str) -> list[ConversationEntry]:
        """Return the conversations that have all words in title, model, day or text, the last one
        used first."""
        entries = self.entries()
        words = typed.lower().split()
        for word in words:
            texts = self.select(partial(_texts_with, word)) or {}
            found = []
            for one in entries:
                text = texts.get(int(one.id))
                if word.casefold() in f"{one.id} {one.title} {one.model} {one.changed}".casefold():
                    found.append(one)
                elif text is not None:
                    found.append(
                        one if one.snippet else replace(one, snippet=snippet_of(text, word))
                    )
            entries = found
        return entries

    def last_used(self, model_path: str) -> str | None:
        """Return the conversation that was used last with a model; None if none exists."""
        sql = (
            f"SELECT id FROM conversation c WHERE {IS_CONVERSATION} AND model_path=? AND "
            f"(length(waiting)>2 OR EXISTS"
            " (SELECT 1 FROM message m WHERE m.conversation=c.id)) ORDER BY used DESC, id "
            "DESC LIMIT 1"
        )
        return next((id_of(number) for (number,) in self._rows(sql, model_path)), None)

    def find(self, name: str) -> str | None:
        """Return the conversation with this title, the last one used; failing that, with this
        number."""
        name = " ".join(name.split())  # as titles are kept
        wanted = clean_line(name, MOST_TITLE_CHARS).casefold()
        rows = self._rows(
            f"SELECT id, title FROM conversation WHERE {IS_CONVERSATION} "
            "ORDER BY used DESC, id DESC"
        )
        if name.isdecimal() and len(name) <= 12:
            number = int(name)
        else:
            number = 0
        found = [one for one, title in rows if _line(title).casefold() == wanted] or [number]
        if found[0] in {one for one, _ in rows}:
            return id_of(found[0])
        return None

    def alone(self) -> AbstractContextManager[None]:
        """Keep other programs out, where files can be locked, while a title is looked for and
        taken."""
        return locks.alone(self.root)

    # ---- one of them

    def read(self, conversation_id: str) -> SavedConversation:
        """Read a conversation, changing nothing."""
        number = _number(conversation_id)
        saved = self.select(lambda db: _saved(db, number))
        if saved is None:
            raise StoreError("there is no such conversation")
        return saved

    def open(self, conversation_id: str) -> LoadedConversation:
        """Open a conversation; one that is in use, or cannot be written, comes as a copy."""
        number = _number(conversation_id)
        saved = self.read(conversation_id)
        obstacle = ""
        held = None
        try:
            assert self.root is not None
            held = OpenConversation(self.root, number, take(self.root, number))
            saved = self.read(conversation_id)
        except InUseError as error:
            obstacle = str(error)
        except OSError as error:
            obstacle = cause_of(error)
        except BaseException:
            if held is not None:
                held.close()
            raise
        lines = (f"{obstacle}: you go on with a copy" if obstacle else "", saved.damage)
        return LoadedConversation(
            conversation_id, saved, held, "; ".join(filter(None, lines)), obstacle
        )

    def create(self) -> OpenConversation:
        """Begin a conversation, with its first change."""
        return OpenConversation(self.root)

    def rename(self, conversation_id: str, title: str) -> None:
        """Give one that is not open another title."""
        with closing(self._take(conversation_id)) as held:
            held.apply([set_columns(title=clean_line(title, MOST_TITLE_CHARS))], is_durable=True)

    def delete(self, conversation_id: str) -> None:
        """Delete a conversation for good: in the database, its log of pages and its copies, with
        its states."""
        with closing(self._take(conversation_id)) as held:
            assert self.root is not None
            for path in (*self.segments(conversation_id, only_own=True), *_guesses_from(held.id)):
                with suppress(OSError):
                    path.unlink()
            with closing(connect(self.root)) as db:
                transact(db, lambda db: _delete(db, held.number), writes=True)
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            for backup in BACKUPS:
                _delete_in_copy(self.root / backup, held.number)

    def _take(self, conversation_id: str) -> OpenConversation:
        """Hold a conversation, which need not be one that can be read."""
        number = _number(conversation_id)
        if self.root is None or not self._rows("SELECT 1 FROM conversation WHERE id=?", number):
            raise StoreError("there is no such conversation")
        try:
            return OpenConversation(self.root, number, take(self.root, number))
        except OSError as error:
            raise StoreError(cause_of(error)) from None

    # ---- the states of the cache

    def add_segment(self, conversation_id: str, kind: str, name: str) -> None:
        """Note that a conversation needs a file of the saved states; ``kind``: its model and type
        of cache."""
        row = (kind, name, _number(conversation_id))
        # it may be deleted by now
        sql = "INSERT OR IGNORE INTO segment SELECT id, ?, ? FROM conversation WHERE id=?"
        run_transaction(self.root, lambda db: db.execute(sql, row), writes=True)

    def segments(self, conversation_id: str, only_own: bool = False) -> set[Path]:
        """Return where the segments of a conversation's states are, or those that no other has;
        some may not exist."""
        number = _number(conversation_id)
        return self.segments_of([number], only_own).get(number, set())

    def state_bytes(self, ids: Iterable[str]) -> int:
        """Return what the saved states of some conversations take, what they share counted once."""
        of_each = self.segments_of([_number(one) for one in ids])
        return sum(map(size_of, set().union(*of_each.values())))

    def segments_of(self, numbers: Sequence[int], only_own: bool = False) -> dict[int, set[Path]]:
        """Return the same for several, by their numbers."""
        other = (
            "SELECT 1 FROM segment o WHERE o.kind=s.kind AND o.name=s.name AND "
            "o.conversation<>s.conversation"
        )
        sql = "SELECT conversation, kind, name FROM segment s" + (
            f" WHERE NOT EXISTS ({other})" if only_own else ""
        )
        wanted = set(numbers)
        found = dict[int, set[Path]]()
        if wanted:
            rows = self._rows(sql)
        else:
            rows = []
        if rows:
            from engine.saved_state.segments import Segment  # NumPy, which no first frame waits for
        for number, kind, name in rows:
            is_kind = (
                isinstance(kind, str)
                and kind.isprintable()
                and kind == os.path.basename(kind)
                and kind.strip(".")
            )
            if (
                number in wanted
                and is_kind
                and self._states is not None
                and Segment.of_name(str(name)) is not None
            ):
                found.setdefault(number, set()).add(self._states / kind / name)
        return found


def _guesses_from(conversation_id: str) -> list[Path]:
    """Return the files of a conversation's tokens, in each vocabulary."""
    root = paths.guesses_dir()
    if root is not None:
        return list(root.glob(f"*/{conversation_id}"))
    return []


def _delete_in_copy(path: Path, number: int) -> None:
    """Delete a conversation in a copy, which stays as old as it is; a damaged copy goes."""
    if not path.exists():
        return
    made = path.stat()
    try:
        with closing(open_file(path)) as db:
            transact(db, lambda db: _delete(db, number), writes=True)
    except DamagedError:
        path.unlink(missing_ok=True)
    else:
        os.utime(path, ns=(made.st_atime_ns, made.st_mtime_ns))


# ---- rows


def id_of(number: int) -> str:
    """Return the id of the conversation with a number."""
    return f"{number:06d}"


def _number(conversation_id: str) -> int:
    if not _ID.fullmatch(conversation_id):
        raise StoreError("there is no such conversation")
    return int(conversation_id)


def _saved(db: sqlite3.Connection, number: int) -> SavedConversation | None:
    columns = (
        "title, began, changed, model, model_path, unsent, forked_from, waiting, system, "
        "n_dropped, adapters"
    )
    row = db.execute(f"SELECT {columns} FROM conversation WHERE id=?", (number,)).fetchone()
    if row is None:
        return None
    (
        title,
        began,
        changed,
        model,
        model_path,
        unsent,
        forked_from,
        waiting,
        system,
        n_dropped,
        adapters,
    ) = row
    queued = _texts(waiting)
    conversation = Conversation(clean_text(system) if isinstance(system, str) else None)
    conversation.adapters = tuple(one[:_MOST_PATH_CHARS] for one in _texts(adapters))
    messages = conversation.messages = _messages(db, number)
    if conversation.awaits_reply:
        interrupted = _interrupted(db, number)
    else:
        interrupted = None
    if interrupted is not None:
        messages.append(interrupted)
    conversation.n_dropped = min(_count(n_dropped), len(messages))
    conversation.drop_gaps()
    conversation.set_sources()
    conversation.is_cut_off = conversation.awaits_reply
    return SavedConversation(
        conversation,
        _title(title, conversation, queued),
        _line(began),
        _line(changed),
        _line(model),
        _text(model_path)[:_MOST_PATH_CHARS],
        clean_text(_text(unsent)),
        id_of(forked_from) if _count(forked_from) else "",
        queued,
        interrupted is not None,
    )


def _title(title: object, conversation: Conversation, waiting: Sequence[str]) -> str:
    said = (
        one.folded or one.text
        for one in conversation.messages
        if one.role is Role.USER and one.text
    )
    return _line(title) or title_of(next(said, "") or next(iter(waiting), ""))


def _messages(db: sqlite3.Connection, number: int) -> list[ChatMessage]:
    """Return the messages; what is missing between two of them, or makes no sense, is a message
    that says so."""
    messages: list[ChatMessage] = []
    n_chars = 0
    sql = (
        "SELECT place, role, text, more FROM message WHERE conversation=? AND place>=0 ORDER BY "
        "place"
    )
    for place, role, text, more in db.execute(sql, (number,)):
        n_chars += len(_text(text)) + len(_text(more))
        if type(place) is not int or place > MOST_MESSAGES or n_chars > 2 * MOST_CONVERSATION_BYTES:
            raise StoreError(f"the conversation is larger than {MOST_CONVERSATION_BYTES >> 20} MiB")
        messages += [_missing(at) for at in range(len(messages), place)]
        try:
            message = message_of(role, text, more)
        except UnsoundError:
            message = _missing(place)
        messages.append(message if message.role is _side(place) else _missing(place))
    # no one can answer that
    if messages and messages[-1].is_missing and messages[-1].role is Role.USER:
        messages.pop()
    return messages


def _side(place: int) -> Role:
    if place % 2:
        return Role.ASSISTANT
    return Role.USER


def _missing(place: int) -> ChatMessage:
    return ChatMessage(_side(place), "", is_missing=True)


def _interrupted(db: sqlite3.Connection, number: int) -> ChatMessage | None:
    """Return the reply that was being written when the program ended, as far as its pieces make
    sense."""
    message = ChatMessage(Role.ASSISTANT, "", Ending.INTERRUPTED)
    thought = ""
    n_chars = 0
    texts = []
    thoughts = []
    ids = []
    raws = []
    for (more,) in db.execute("SELECT more FROM piece WHERE conversation=? ORDER BY id", (number,)):
        n_chars += len(_text(more))
        try:
            text, thought, new, raw, is_edited = json.loads(_text(more))
        except (ValueError, TypeError, RecursionError):
            break
        is_sound = all(isinstance(one, str) for one in (text, thought, raw)) and are_ids(new)
        if not is_sound or n_chars > MOST_CONVERSATION_BYTES:
            break
        texts.append(clean_text(text))
        thoughts.append(clean_text(thought))
        ids += new
        raws.append(raw)
        message.is_edited = is_edited is True
    message.text, thought = "".join(texts), "".join(thoughts)
    message.raw = "".join(raws)
    message.ids = tuple(ids)
    if thought.strip():
        message.thinking = Thinking(thought, is_closed=bool(message.text))
    else:
        message.thinking = None
    if message.text or thought or ids:
        return message
    return None


def _entry(row: Sequence[Any]) -> ConversationEntry:
    number, title, began, changed, model, model_path, waiting, n_messages, tokens, n_bytes = row
    return ConversationEntry(
        id_of(number),
        _line(title),
        _line(began),
        _line(changed),
        _line(model),
        _text(model_path)[:_MOST_PATH_CHARS],
        n_messages + len(_texts(waiting)),
        int(max(0, min(tokens or 0, _LARGEST))),
        int(max(0, min(n_bytes or 0, _LARGEST))),
    )


def _texts_with(word: str, db: sqlite3.Connection) -> dict[int, str]:
    """Return the first text with a word of each conversation, by its number."""
    db.create_function(
        "has", 2, lambda text, word: word.casefold() in _text(text).casefold(), deterministic=True
    )
    which = "has(text, ?)"
    values = [word]
    if len(word) >= _INDEXED_CHARS and can_search(db):
        # The index knows letters by simple folding: "straße" is not "strasse" there.
        which = f"id IN (SELECT rowid FROM search WHERE search MATCH ?) AND {which}"
        values.insert(0, " OR ".join(map(_in_the_index, dict.fromkeys((word, word.casefold())))))
    sql = f"SELECT conversation, text, min(place) FROM message WHERE {which} GROUP BY conversation"
    found = db.execute(sql, values)
    texts = {number: _text(text) for number, text, _ in found}
    for number, system in db.execute("SELECT id, system FROM conversation WHERE system<>''"):
        if word.casefold() in _text(system).casefold():
            texts.setdefault(number, _text(system))
    return texts


def _in_the_index(word: str) -> str:
    n_parts = min(len(word) - _INDEXED_CHARS + 1, _MOST_PARTS)
    parts = [word[at : at + _INDEXED_CHARS].replace('"', '""') for at in range(n_parts)]
    return "(" + " AND ".join(f'"{one}"' for one in parts) + ")"


def snippet_of(text: str, word: str) -> str:
    """Return the place of a word in a text, clean and of one line."""
    at = max(0, text.casefold().find(word.casefold()) - _SNIPPET_CHARS // 3)
    return clean_line(" ".join(text[at : at + _SNIPPET_CHARS].split()), _SNIPPET_CHARS) or word


def _delete(db: sqlite3.Connection, number: int) -> None:
    had_words = db.execute("SELECT 1 FROM message WHERE conversation=?", (number,)).fetchone()
    keep_messages(0)(db, number)
    db.execute("DELETE FROM conversation WHERE id=?", (number,))
    if had_words and can_search(db):  # or they would stay in parts of the index
        db.execute("INSERT INTO search(search) VALUES('optimize')")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return ""


def _line(value: object) -> str:
    return clean_line(_text(value), MOST_TITLE_CHARS)


def _count(value: object) -> int:
    if type(value) is int and 0 <= value <= _LARGEST:
        return value
    return 0


def _texts(value: object) -> list[str]:
    try:
        found = json.loads(_text(value) or "[]")
    except (ValueError, RecursionError):
        return []
    if isinstance(found, list):
        texts = found[:_MOST_WAITING]
    else:
        texts = []
    return [clean_text(one) for one in texts if isinstance(one, str) and one]


def title_of(text: str) -> str:
    """Return a title for a conversation that begins with this message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # What was typed says more than the chips of files and pastes before it.
    typed = (_OPENING_CHIPS.sub("", line).strip() for line in lines)
    first = next(filter(None, typed), next(iter(lines), ""))
    return clean_line(" ".join(first.split()), MOST_TITLE_CHARS)


def model_key(path: ModelPlace | str) -> str:
    """Return how a model's file is named here; all models of a server are one."""
    if is_remote(path):
        return str(path).partition("#")[0]
    return os.path.realpath(str(path))


def now_text() -> str:
    """Return the wall time, for display only."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def size_of(path: Path) -> int:
    """Return a file's size in bytes; 0 if it does not exist."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0

"""All conversations in one database: listing, searching, opening, renaming and deleting.

``Store`` finds and reads conversations. ``OpenConversation`` is open in one place only; its
``apply`` makes changes, returned by ``put_message``, ``keep_messages``, ``add_piece`` and
``set_columns``, in one transaction. A message is a row, and a running reply has a row for each
piece.

The database is not trusted: sizes are bounded, texts are cleaned, and an unsound row is a missing
message. The id of a conversation is its number with at least six digits.
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
from app.conversations.branch_rows import (
    delete_branches,
    insert_branches,
    read_branches,
    set_alternatives,
    texts_of_branches_with,
    totals_of_branches,
)
from app.conversations.branches import find_message, show_place
from app.conversations.conversation import Branch, ChatMessage, Conversation, Ending, Role
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
from app.conversations.last_exchange import LastExchange, last_exchanges
from app.conversations.locks import InUseError, Lock, StoreError, take
from app.conversations.mark_rows import Marks, marks_of, read_summaries, searched_tag
from app.conversations.message_row import UnsoundError, are_ids, message_of, row_of
from app.conversations.session_options import options_from_json
from app.conversations.tables import has_table
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
"""Limit on a conversation; it takes weeks of writing to fill."""
MOST_MESSAGES = 100_000
_MOST_PATH_CHARS = 4096
_MOST_WAITING = 64
_LARGEST = 1 << 53
_SNIPPET_CHARS = 160
_MOST_TITLED_CHARS = 1000
"""Limit on the beginning of a first message that a title is made of."""
_UNKNOWN = "there is no such conversation"
_OTHER_BRANCH = "(in another branch)"
_INDEXED_CHARS = 3
_MOST_TRIGRAMS = 50
"""Limit on trigrams looked up for a word. Shorter words are searched in the texts themselves."""
_ID = re.compile(r"[0-9]{6,12}")
IS_CONVERSATION = "id BETWEEN 1 AND 999999999999"
"""Condition for rows of conversations: number 0 is of none, and ids have at most 12 digits."""
_OPENING_CHIPS = re.compile(rf"^(?:{CHIP.pattern}\s*)+")

Change = Callable[["sqlite3.Connection", int], object]
"""Change of the conversation with a number."""


@record
class ConversationEntry:
    """A conversation of the list.

    All text is clean and has one line, except ``model_path``, which is a path.
    """

    id: str
    title: str = ""
    began: str = ""
    changed: str = ""
    """Wall times as ISO text, only for display."""
    model: str = ""
    model_path: str = ""
    """Name and path of the last model."""
    n_messages: int = 0
    """Number of messages, queued ones included, but not those of other branches."""
    n_branches: int = 0
    """Number of branches that are not shown."""
    tokens: int = 0
    """Number of tokens in all replies."""
    text_bytes: int = 0
    state_bytes: int = 0
    """Sizes of the conversation and of its saved states, shared ones included."""
    is_pinned: bool = False
    """Whether it comes first in the list."""
    tags: tuple[str, ...] = ()
    """Tags in alphabetical order."""
    snippet: str = ""
    """Match of a search in its context, clean and of one line; "" if the title matches."""


@dataclass
class SavedConversation:
    """A conversation with its title, times and model."""

    conversation: Conversation = field(default_factory=Conversation)
    title: str = ""
    began: str = ""
    changed: str = ""
    model: str = ""
    model_path: str = ""
    unanswered_replacement: str = ""
    """Message that was sent in place of others and whose reply has not begun."""
    forked_from: str = ""
    """Id of the conversation that this one is a copy of; "" if it is none."""
    queued_texts: list[str] = field(default_factory=list)
    """Messages that were sent while the engine was busy, oldest first."""
    n_rows: int = 0
    """Number of messages with rows. Those after them are an interrupted reply, which was saved in
    pieces, or a branch that such a reply would have replaced or that is shown again.
    """
    n_lost_branches: int = 0
    """Number of branches that cannot be read."""
    ignored_options: tuple[str, ...] = ()
    """Names of saved options that cannot be used."""
    marks: Marks = field(default_factory=Marks)
    """Pin and tags."""

    @property
    def text_to_resend(self) -> str:
        """All sent text that is not in the conversation, for the user to send again; "" if there is
        none.
        """
        return _text_to_resend(self.unanswered_replacement, self.queued_texts)

    @property
    def damage(self) -> str:
        """Description of missing messages and branches; "" if none is missing."""
        n = sum(message.is_missing for message in self.conversation.messages)
        n_branches = self.n_lost_branches
        lines = []
        if n:
            counted = "1 message is" if n == 1 else f"{n} messages are"
            lines.append(f"{counted} missing (damaged); the model continues after the last one")
        if n_branches:
            counted = "1 branch is" if n_branches == 1 else f"{n_branches} branches are"
            lines.append(f"{counted} missing (damaged)")
        return "; ".join(lines)

    @property
    def options_notice(self) -> str:
        """Line about saved options that cannot be used; "" if there are none."""
        if not self.ignored_options:
            return ""
        return f"saved options are not valid and were ignored: {', '.join(self.ignored_options)}"


@record
class ConversationHead:
    """A conversation without its messages."""

    title: str = ""
    changed: str = ""
    model: str = ""
    model_path: str = ""
    """Name and path of the last model."""
    text_to_resend: str = ""
    """All sent text that is not in the conversation; "" if there is none."""


def show_branch_with(saved: SavedConversation, word: str) -> None:
    """Show the branch of a saved conversation that has the first message with a word.

    Raises Refusal: it cannot be shown.
    """
    place = find_message(saved.conversation.messages, word)
    if place is not None and place.steps:
        # What follows is saved again, as it is shown.
        saved.n_rows = min(saved.n_rows, place.steps[0][0])
        show_place(saved.conversation, place)


@record
class LoadedConversation:
    """A conversation read from the database, and opened if possible."""

    id: str
    saved: SavedConversation
    open_conversation: OpenConversation | None
    """The conversation to write to; None if it can only be copied."""
    notice: str = ""
    """Line for the user about damage or an obstacle; "" if there is none."""
    obstacle: str = ""
    """Reason why it can only be copied; "" if it is open."""


# ---- changes


def put_message(position: int, message: ChatMessage, time_text: str) -> Change:
    """Return a change that writes a message with its alternatives at its position, in place of all
    messages from there on.

    Args:
        time_text: wall time.
    """
    role, tokens, n_bytes, text, json_text = row_of(message)

    def change(db: sqlite3.Connection, number: int) -> None:
        keep_messages(position)(db, number)
        row = (number, position, role, tokens, n_bytes, text, json_text)
        columns = "conversation, place, role, tokens, n_bytes, text, more"
        done = db.execute(f"INSERT INTO message({columns}) VALUES(?, ?, ?, ?, ?, ?, ?)", row)
        if can_search(db):
            db.execute("INSERT INTO search(rowid, text) VALUES(?, ?)", (done.lastrowid, text))
        insert_branches(db, number, position, message.alternatives)
        db.execute("UPDATE conversation SET changed=? WHERE id=?", (time_text, number))

    return change


def put_branches(position: int, branches: Sequence[Branch]) -> Change:
    """Return a change that writes the branches from a position where no message is yet."""
    return lambda db, number: insert_branches(db, number, position, branches)


def keep_messages(n_messages: int) -> Change:
    """Return a change that keeps the first messages and deletes the others with their branches,
    pieces of a reply and a message sent in place of others.
    """

    def change(db: sqlite3.Connection, number: int) -> None:
        deleted = (number, n_messages)
        if can_search(db):
            old = "SELECT 'delete', id, text FROM message WHERE conversation=? AND place>=?"
            db.execute(f"INSERT INTO search(search, rowid, text) {old}", deleted)
        db.execute("DELETE FROM message WHERE conversation=? AND place>=?", deleted)
        delete_branches(db, number, n_messages)
        db.execute("DELETE FROM piece WHERE conversation=?", (number,))
        db.execute("UPDATE conversation SET unsent='' WHERE id=? AND unsent<>''", (number,))

    return change


def add_piece(text: str, thought: str, ids: Sequence[int], raw: str, is_edited: bool) -> Change:
    """Return a change that adds a piece to the running reply."""
    json_text = json.dumps([text, thought, list(ids), raw, is_edited], separators=(",", ":"))
    return lambda db, number: db.execute(
        "INSERT INTO piece(conversation, more) VALUES(?, ?)", (number, json_text)
    )


def set_columns(**values: object) -> Change:
    """Return a change that writes columns of the conversation's row."""
    columns = ", ".join(
        f"{name}=?" for name in values
    )  # The column names are constants of the program.
    row = [
        value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for value in values.values()
    ]
    return lambda db, number: db.execute(
        f"UPDATE conversation SET {columns} WHERE id=?", (*row, number)
    )


def mark_used(db: sqlite3.Connection, number: int) -> None:
    """Make the conversation the last used."""
    db.execute(
        (
            "UPDATE conversation SET used=(SELECT max(coalesce(used, 0))+1 FROM conversation) "
            "WHERE id=?"
        ),
        (number,),
    )


def touch(db: sqlite3.Connection, number: int) -> None:
    """Write without changing anything, so that all earlier writes are synced."""
    db.execute("UPDATE conversation SET changed=changed WHERE id=?", (number,))


class OpenConversation:
    """A conversation that is open here alone until it is closed.

    Without a number, its first change creates it.
    """

    def __init__(self, root: Path | None, number: int = 0, lock: Lock | None = None) -> None:
        self._root = root
        self.number = number
        self._lock = lock
        self._db: sqlite3.Connection | None = None

    @property
    def id(self) -> str:
        """Id of the conversation; "" before it is saved."""
        if self.number:
            return id_of(self.number)
        return ""

    @property
    def is_locked(self) -> bool:
        """Whether other programs see that the conversation is in use."""
        return self._lock is None or self._lock.is_known

    def apply(self, changes: Sequence[Change], is_durable: bool) -> None:
        """Make all changes or none. With ``is_durable``, they survive a power cut.

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
            if (
                not self.number and self._lock is not None
            ):  # The next attempt may create another conversation.
                self._lock.close()
                self._lock = None
            raise

    def _change(self, db: sqlite3.Connection, changes: Sequence[Change], is_durable: bool) -> int:
        # Its row may be lost in a repaired database.
        row = (self.number or None,)
        cursor = db.execute(
            "INSERT OR IGNORE INTO conversation(id, title, n_dropped) VALUES(?, '', 0)", row
        )
        number = self.number or int(cursor.lastrowid or 0)
        if self._lock is None and self._root is not None:
            try:
                self._lock = take(self._root, number)
            except OSError as error:
                raise StoreError(cause_of(error)) from None
        for change in changes:
            change(db, number)
        if is_durable:
            size = sum(
                db.execute(
                    f"SELECT total(n_bytes) FROM {table} WHERE conversation=?", (number,)
                ).fetchone()[0]
                for table in ("message", "branch")
                if has_table(db, table)
            )
            if size > MOST_CONVERSATION_BYTES:
                raise StoreError(
                    f"the conversation is full, at {MOST_CONVERSATION_BYTES >> 20} MiB (go on "
                    f"in a new one)"
                )
        return number

    def close(self) -> None:
        """Close the conversation and release its lock."""
        db = self._db
        self._db = None
        lock = self._lock
        self._lock = None
        if db is not None:
            with suppress(Exception):  # everything reported as written is on the disk
                db.close()
        if lock is not None:
            lock.close()


class Store:
    """Conversations in a directory, by default that of the platform.

    Methods raise StoreError.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or paths.conversations_dir()
        self._states = paths.states_dir()
        self._has_looked_for_notice = False

    def select(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Return the result of a read; None if nothing was ever saved. Nothing is created."""
        exists = self.root is not None and any(
            os.path.lexists(self.root / name) for name in (NAME, *BACKUPS)
        )
        if exists:
            return run_transaction(self.root, work)
        return None

    def _rows(self, sql: str, *values: object) -> list[Any]:
        return self.select(lambda db: db.execute(sql, values).fetchall()) or []

    def take_notice(self) -> str:
        """Return a line about a repair by this process, once; "" if there was none."""
        if self.root is not None:
            return notices.take(self.root / NAME)
        return ""

    def take_chat_notice(self) -> str:
        """Return a line about repairs since the last chat; "" if there was none."""
        line = self.take_notice()
        if self.root is not None and (line or not self._has_looked_for_notice):
            self._has_looked_for_notice = True
            line = take_repair_notice(self.root) or line
        return line

    def check_and_copy(self, now_s: float) -> None:
        """Check and copy the database once a day. This takes about a second for 100 MB."""
        check_and_copy(self.root, now_s)

    # ---- finding conversations

    def ids(self) -> list[str]:
        """Return the ids of all conversations, oldest first."""
        rows = self._rows(f"SELECT id FROM conversation WHERE {IS_CONVERSATION} ORDER BY id")
        return [id_of(number) for (number,) in rows]

    def entries(self) -> list[ConversationEntry]:
        """Return all conversations, the last used first."""
        sql = (
            "SELECT c.id, c.title, c.began, c.changed, c.model, c.model_path, c.waiting, "
            "count(m.id)"
            " + EXISTS(SELECT 1 FROM piece p WHERE p.conversation=c.id), total(m.tokens), "
            "total(m.n_bytes)"
            " FROM conversation c LEFT JOIN message m ON m.conversation=c.id"
            f" WHERE c.{IS_CONVERSATION} GROUP BY c.id "
            "ORDER BY c.used DESC, c.changed DESC, c.id DESC"  # imported ones were never used
        )
        rows = self._rows(sql)
        segments = self.segments_of([row[0] for row in rows])
        branches = self.select(totals_of_branches) or {}
        marks = self.select(marks_of) or {}
        entries = []
        for row in rows:
            n_branches, tokens, n_bytes = branches.get(row[0], (0, 0, 0))
            entry = _entry(row)
            mark = marks.get(row[0], Marks())
            entries.append(
                replace(
                    entry,
                    is_pinned=mark.is_pinned,
                    tags=mark.tags,
                    n_branches=n_branches,
                    tokens=entry.tokens + _bounded(tokens),
                    text_bytes=entry.text_bytes + _bounded(n_bytes),
                    state_bytes=sum(map(size_of, segments.get(row[0], ()))),
                )
            )
        return entries

    def search(self, typed: str) -> list[ConversationEntry]:
        """Return the conversations with all words in title, model, day or text, the last used
        first.

        A word such as "#work" is a tag, or the beginning of one.
        """
        entries = self.entries()
        words = typed.lower().split()
        for word in words:
            tag = searched_tag(word)
            if tag:
                entries = [entry for entry in entries if _has_tag(entry, tag)]
                continue
            texts, branch_texts = self.select(partial(_texts_with, word)) or ({}, {})
            matches = []
            for entry in entries:
                number = int(entry.id)
                if _is_in_row(word, entry):
                    matches.append(entry)
                elif number in texts or number in branch_texts:
                    if number in texts:
                        snippet = snippet_of(texts[number], word)
                    else:
                        snippet = f"{_OTHER_BRANCH} {snippet_of(branch_texts[number], word)}"
                    matches.append(replace(entry, snippet=entry.snippet or snippet))
            entries = matches
        return entries

    def last_exchanges(self, ids: Iterable[str]) -> dict[str, LastExchange]:
        """Return the last exchanges of conversations by their ids."""
        numbers = [_number(conversation_id) for conversation_id in ids]
        exchanges = self.select(partial(last_exchanges, numbers=numbers)) or {}
        return {id_of(number): exchange for number, exchange in exchanges.items()}

    def last_used(self, model_path: str) -> str | None:
        """Return the conversation last used with a model; None if there is none."""
        sql = (
            f"SELECT id FROM conversation c WHERE {IS_CONVERSATION} AND model_path=? AND "
            f"(length(waiting)>2 OR EXISTS"
            " (SELECT 1 FROM message m WHERE m.conversation=c.id)) ORDER BY used DESC, id "
            "DESC LIMIT 1"
        )
        return next((id_of(number) for (number,) in self._rows(sql, model_path)), None)

    def find(self, name: str) -> str | None:
        """Return the conversation with a title, the last used first, or else with a number; None if
        there is none.
        """
        name = " ".join(name.split())  # titles are saved with single spaces
        title_key = clean_line(name, MOST_TITLE_CHARS).casefold()
        rows = self._rows(
            f"SELECT id, title FROM conversation WHERE {IS_CONVERSATION} "
            "ORDER BY used DESC, id DESC"
        )
        if name.isdecimal() and len(name) <= 12:
            number = int(name)
        else:
            number = 0
        numbers = [number_ for number_, title in rows if _line(title).casefold() == title_key] or [
            number
        ]
        if numbers[0] in {number_ for number_, _ in rows}:
            return id_of(numbers[0])
        return None

    def alone(self) -> AbstractContextManager[None]:
        """Keep other programs from looking up titles, if files can be locked."""
        return locks.alone(self.root)

    # ---- single conversations

    def read(self, conversation_id: str) -> SavedConversation:
        """Read a conversation without opening it."""
        number = _number(conversation_id)
        saved = self.select(lambda db: _saved(db, number))
        if saved is None:
            raise StoreError(_UNKNOWN)
        return saved

    def read_head(self, conversation_id: str) -> ConversationHead:
        """Read what is known of a conversation without reading its messages."""
        number = _number(conversation_id)
        first_text = (
            f"SELECT substr(text, 1, {_MOST_TITLED_CHARS}) FROM message "
            "WHERE conversation=c.id AND place=0"
        )
        columns = f"title, changed, model, model_path, unsent, waiting, ({first_text})"
        rows = self._rows(f"SELECT {columns} FROM conversation c WHERE id=?", number)
        if not rows:
            raise StoreError(_UNKNOWN)
        title, changed, model, model_path, unsent, queued_json, first_text = rows[0]
        queued = _texts(queued_json)
        return ConversationHead(
            _line(title) or title_of(_text(first_text) or next(iter(queued), "")),
            _line(changed),
            _line(model),
            _text(model_path)[:_MOST_PATH_CHARS],
            _text_to_resend(clean_text(_text(unsent)), queued),
        )

    def n_tokens(self, conversation_id: str) -> int:
        """Estimate how many tokens a model reads to continue a conversation."""
        from app.documents.read import about_tokens  # the first frame does not need it

        rows = self._rows(
            "SELECT tokens, text FROM message m JOIN conversation c ON c.id=m.conversation "
            "WHERE c.id=? AND m.place>=c.n_dropped",
            _number(conversation_id),
        )
        return sum(_count(tokens) or about_tokens(_text(text)) for tokens, text in rows)

    def open(self, conversation_id: str) -> LoadedConversation:
        """Open a conversation.

        One that is in use or cannot be written is only read, to be copied.
        """
        number = _number(conversation_id)
        root = self._root_of(number)
        obstacle = ""
        open_conversation = None
        try:
            open_conversation = OpenConversation(root, number, take(root, number))
        except InUseError as error:
            obstacle = str(error)
        except OSError as error:
            obstacle = cause_of(error)
        try:
            saved = self.read(conversation_id)
        except BaseException:
            if open_conversation is not None:
                open_conversation.close()
            raise
        lines = (
            f"{obstacle}, so this is a copy" if obstacle else "",
            saved.damage,
            saved.options_notice,
        )
        return LoadedConversation(
            conversation_id, saved, open_conversation, "; ".join(filter(None, lines)), obstacle
        )

    def create(self) -> OpenConversation:
        """Return a new conversation, which is saved with its first change."""
        return OpenConversation(self.root)

    def rename(self, conversation_id: str, title: str) -> None:
        """Change the title of a conversation that is not open."""
        with closing(self._take(conversation_id)) as conversation:
            conversation.apply(
                [set_columns(title=clean_line(title, MOST_TITLE_CHARS))], is_durable=True
            )

    def change_marks(self, conversation_id: str, change: Change) -> None:
        """Change the pin or the tags of a conversation that is not open."""
        with closing(self._take(conversation_id)) as conversation:
            conversation.apply([change], is_durable=True)

    def delete(self, conversation_id: str) -> None:
        """Delete a conversation with its states: in the database, its log and its copies."""
        with closing(self._take(conversation_id)) as conversation:
            assert self.root is not None
            self.free_states(conversation_id)
            for path in _guesses_from(conversation.id):
                with suppress(OSError):
                    path.unlink()
            with closing(connect(self.root)) as db:
                transact(db, lambda db: _delete(db, conversation.number), writes=True)
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            for backup in BACKUPS:
                _delete_in_copy(self.root / backup, conversation.number)

    def _root_of(self, number: int) -> Path:
        """Return the directory, which has a conversation with this number. Raises StoreError."""
        if self.root is None or not self._rows("SELECT 1 FROM conversation WHERE id=?", number):
            raise StoreError(_UNKNOWN)
        return self.root

    def _take(self, conversation_id: str) -> OpenConversation:
        """Lock a conversation, even one that cannot be read."""
        number = _number(conversation_id)
        root = self._root_of(number)
        try:
            return OpenConversation(root, number, take(root, number))
        except OSError as error:
            raise StoreError(cause_of(error)) from None

    # ---- saved states of the KV cache

    def add_segment(self, conversation_id: str, directory_name: str, name: str) -> None:
        """Record that a conversation needs a segment file of a directory of saved states."""
        row = (directory_name, name, _number(conversation_id))
        # the conversation may be deleted by now
        sql = "INSERT OR IGNORE INTO segment SELECT id, ?, ? FROM conversation WHERE id=?"
        run_transaction(self.root, lambda db: db.execute(sql, row), writes=True)

    def segments(self, conversation_id: str, only_own: bool = False) -> set[Path]:
        """Return the segment files of a conversation, or those that it alone needs.

        Some may not exist.
        """
        number = _number(conversation_id)
        return self.segments_of([number], only_own).get(number, set())

    def free_states(self, conversation_id: str) -> int:
        """Delete the saved states that this conversation alone needs; return the freed bytes."""
        freed_bytes = 0
        for path in self.segments(conversation_id, only_own=True):
            n_bytes = size_of(path)
            with suppress(OSError):
                path.unlink()
                freed_bytes += n_bytes
        return freed_bytes

    def state_bytes(self, ids: Iterable[str]) -> int:
        """Return the size of the saved states of conversations; shared files count once."""
        segments = self.segments_of([_number(conversation_id) for conversation_id in ids])
        return sum(map(size_of, set().union(*segments.values())))

    def segments_of(self, numbers: Sequence[int], only_own: bool = False) -> dict[int, set[Path]]:
        """Return the segment files of conversations by their numbers, or those that they alone
        need.
        """
        shared_sql = (
            "SELECT 1 FROM segment o WHERE o.kind=s.kind AND o.name=s.name AND "
            "o.conversation<>s.conversation"
        )
        sql = "SELECT conversation, kind, name FROM segment s" + (
            f" WHERE NOT EXISTS ({shared_sql})" if only_own else ""
        )
        requested = set(numbers)
        segments = dict[int, set[Path]]()
        if requested:
            rows = self._rows(sql)
        else:
            rows = []
        if rows:
            from engine.saved_state.segments import (
                Segment,
            )  # imports NumPy, which the first frame does not need
        for number, directory_name, name in rows:
            is_directory_name = (
                isinstance(directory_name, str)
                and directory_name.isprintable()
                and directory_name == os.path.basename(directory_name)
                and directory_name.strip(".")
            )
            if (
                number in requested
                and is_directory_name
                and self._states is not None
                and Segment.of_name(str(name)) is not None
            ):
                segments.setdefault(number, set()).add(self._states / directory_name / name)
        return segments


def _guesses_from(conversation_id: str) -> list[Path]:
    """Return the files of a conversation's tokens, one for each vocabulary."""
    root = paths.guesses_dir()
    if root is not None:
        return list(root.glob(f"*/{conversation_id}"))
    return []


def _delete_in_copy(path: Path, number: int) -> None:
    """Delete a conversation in a copy and keep the copy's time. A damaged copy is deleted."""
    if not path.exists():
        return
    status = path.stat()
    try:
        with closing(open_file(path)) as db:
            transact(db, lambda db: _delete(db, number), writes=True)
    except DamagedError:
        path.unlink(missing_ok=True)
    else:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# ---- rows


def id_of(number: int) -> str:
    """Return the id of a conversation number."""
    return f"{number:06d}"


def _number(conversation_id: str) -> int:
    if not _ID.fullmatch(conversation_id):
        raise StoreError(_UNKNOWN)
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
        unanswered_replacement,
        forked_from,
        queued_json,
        system,
        n_dropped,
        adapters,
    ) = row
    queued = _texts(queued_json)
    conversation = Conversation(clean_text(system) if isinstance(system, str) else None)
    conversation.options, ignored_options = options_from_json(_text(adapters))
    messages = conversation.messages = _messages(db, number)
    n_rows = len(messages)
    if conversation.awaits_reply:
        interrupted = _interrupted(db, number)
    else:
        interrupted = None
    if interrupted is not None:
        interrupted.n_older = _LARGEST  # it is the newest of its alternatives
        messages.append(interrupted)
    n_lost_branches = _add_branches(db, number, messages)
    conversation.n_dropped = min(_count(n_dropped), len(messages))
    if conversation.n_dropped:
        conversation.summaries = read_summaries(db, number, conversation.n_dropped)
    conversation.drop_gaps()
    conversation.set_sources()
    conversation.has_interrupted_turn = conversation.awaits_reply
    return SavedConversation(
        conversation,
        _title(title, conversation, queued),
        _line(began),
        _line(changed),
        _line(model),
        _text(model_path)[:_MOST_PATH_CHARS],
        clean_text(_text(unanswered_replacement)),
        id_of(forked_from) if _count(forked_from) else "",
        queued,
        n_rows,
        n_lost_branches,
        ignored_options,
        marks_of(db, [number]).get(number, Marks()),
    )


def _add_branches(db: sqlite3.Connection, number: int, messages: list[ChatMessage]) -> int:
    """Give messages the branches that are not shown; return the number of those that are lost.

    If the program ended before the first token of a reply that replaces a branch, that branch is
    shown again.
    """
    branches: dict[int, list[Branch]] = {}
    n_lost = 0
    for place, branch in read_branches(db, number, 2 * MOST_CONVERSATION_BYTES):
        if branch is None or place > len(messages):
            n_lost += 1
        else:
            branches.setdefault(place, []).append(branch)
    replaced = branches.pop(len(messages), None)
    for place, message in enumerate(messages):
        set_alternatives(message, branches.get(place, message.alternatives))
    if replaced:
        newest = replaced.pop()
        newest[0].n_older = len(replaced)
        set_alternatives(newest[0], replaced)
        messages += newest
    return n_lost


def _title(title: object, conversation: Conversation, waiting: Sequence[str]) -> str:
    texts = (
        message.folded or message.text
        for message in conversation.messages
        if message.role is Role.USER and message.text
    )
    return _line(title) or title_of(next(texts, "") or next(iter(waiting), ""))


def _messages(db: sqlite3.Connection, number: int) -> list[ChatMessage]:
    """Return the messages. A gap or an unsound row is a missing message."""
    messages: list[ChatMessage] = []
    n_chars = 0
    sql = (
        "SELECT place, role, text, more FROM message WHERE conversation=? AND place>=0 ORDER BY "
        "place"
    )
    for position, role, text, json_text in db.execute(sql, (number,)):
        n_chars += len(_text(text)) + len(_text(json_text))
        if (
            type(position) is not int
            or position > MOST_MESSAGES
            or n_chars > 2 * MOST_CONVERSATION_BYTES
        ):
            raise StoreError(f"the conversation is larger than {MOST_CONVERSATION_BYTES >> 20} MiB")
        messages += [
            _missing(missing_position) for missing_position in range(len(messages), position)
        ]
        try:
            message = message_of(role, text, json_text)
        except UnsoundError:
            message = _missing(position)
        messages.append(message if message.role is _side(position) else _missing(position))
    # A missing question at the end cannot be answered.
    if messages and messages[-1].is_missing and messages[-1].role is Role.USER:
        messages.pop()
    return messages


def _side(position: int) -> Role:
    if position % 2:
        return Role.ASSISTANT
    return Role.USER


def _missing(position: int) -> ChatMessage:
    return ChatMessage(_side(position), "", is_missing=True)


def _interrupted(db: sqlite3.Connection, number: int) -> ChatMessage | None:
    """Return the reply that was being written when the program ended, from its sound pieces."""
    message = ChatMessage(Role.ASSISTANT, "", Ending.INTERRUPTED)
    thought = ""
    n_chars = 0
    texts = []
    thoughts = []
    ids = []
    raws = []
    for (json_text,) in db.execute(
        "SELECT more FROM piece WHERE conversation=? ORDER BY id", (number,)
    ):
        n_chars += len(_text(json_text))
        try:
            text, thought, new_ids, raw, is_edited = json.loads(_text(json_text))
        except (ValueError, TypeError, RecursionError):
            break
        is_sound = all(isinstance(value, str) for value in (text, thought, raw)) and are_ids(
            new_ids
        )
        if not is_sound or n_chars > MOST_CONVERSATION_BYTES:
            break
        texts.append(clean_text(text))
        thoughts.append(clean_text(thought))
        ids += new_ids
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
    number, title, began, changed, model, model_path, queued_json, n_messages, tokens, n_bytes = row
    return ConversationEntry(
        id_of(number),
        _line(title),
        _line(began),
        _line(changed),
        _line(model),
        _text(model_path)[:_MOST_PATH_CHARS],
        n_messages + len(_texts(queued_json)),
        tokens=_bounded(tokens),
        text_bytes=_bounded(n_bytes),
    )


def _texts_with(word: str, db: sqlite3.Connection) -> tuple[dict[int, str], dict[int, str]]:
    """Return the first text with a word for each conversation number, and texts of branches."""
    db.create_function(
        "has", 2, lambda text, word: word.casefold() in _text(text).casefold(), deterministic=True
    )
    condition = "has(text, ?)"
    values = [word]
    if len(word) >= _INDEXED_CHARS and can_search(db):
        # The index folds letters one by one: it does not match "straße" with "strasse".
        condition = f"id IN (SELECT rowid FROM search WHERE search MATCH ?) AND {condition}"
        values.insert(0, " OR ".join(map(_in_the_index, dict.fromkeys((word, word.casefold())))))
    columns = "conversation, text, min(place)"
    sql = f"SELECT {columns} FROM message WHERE {condition} GROUP BY conversation"
    rows = db.execute(sql, values)
    texts = {number: _text(text) for number, text, _ in rows}
    for number, system in db.execute("SELECT id, system FROM conversation WHERE system<>''"):
        if word.casefold() in _text(system).casefold():
            texts.setdefault(number, _text(system))
    return texts, texts_of_branches_with(word, db)


def _has_tag(entry: ConversationEntry, beginning: str) -> bool:
    return any(tag.casefold().startswith(beginning) for tag in entry.tags)


def _is_in_row(word: str, entry: ConversationEntry) -> bool:
    """Whether a word is in the title, model, day or number of a conversation."""
    row = f"{entry.id} {entry.title} {entry.model} {entry.changed}"
    return word.casefold() in row.casefold()


def word_in_texts(typed: str, entry: ConversationEntry) -> str:
    """Return the first word of a search for which a match has a snippet; "" if there is none."""
    words = (word for word in typed.lower().split() if not searched_tag(word))
    return next((word for word in words if not _is_in_row(word, entry)), "")


def _in_the_index(word: str) -> str:
    n_trigrams = min(len(word) - _INDEXED_CHARS + 1, _MOST_TRIGRAMS)
    trigrams = [
        word[index : index + _INDEXED_CHARS].replace('"', '""') for index in range(n_trigrams)
    ]
    return "(" + " AND ".join(f'"{trigram}"' for trigram in trigrams) + ")"


def snippet_of(text: str, word: str) -> str:
    """Return the surroundings of a word in a text in whole words, clean and of one line."""
    match = max(0, text.casefold().find(word.casefold()))
    start = max(0, match - _SNIPPET_CHARS // 3)
    end = start + _SNIPPET_CHARS
    if start and not text[start - 1].isspace():
        before = text[start:match].split(maxsplit=1)
        start = match - len(before[1]) if len(before) == 2 else match
    if end < len(text) and not text[end].isspace():
        after = text[match + len(word) : end].rsplit(maxsplit=1)
        end = match + len(word) + len(after[0]) if len(after) == 2 else end
    return clean_line(" ".join(text[start:end].split()), _SNIPPET_CHARS) or word


def _delete(db: sqlite3.Connection, number: int) -> None:
    had_words = db.execute("SELECT 1 FROM message WHERE conversation=?", (number,)).fetchone()
    keep_messages(0)(db, number)
    db.execute("DELETE FROM conversation WHERE id=?", (number,))
    if had_words and can_search(db):  # otherwise they would stay in segments of the index
        db.execute("INSERT INTO search(search) VALUES('optimize')")


def _text_to_resend(unanswered_replacement: str, queued_texts: Sequence[str]) -> str:
    return "\n\n".join(filter(None, (unanswered_replacement, *queued_texts)))


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


def _bounded(total: float | None) -> int:
    """Return a sum of a column as an integer within limits."""
    return int(max(0, min(total or 0, _LARGEST)))


def _texts(value: object) -> list[str]:
    try:
        values = json.loads(_text(value) or "[]")
    except (ValueError, RecursionError):
        return []
    if isinstance(values, list):
        texts = values[:_MOST_WAITING]
    else:
        texts = []
    return [clean_text(value) for value in texts if isinstance(value, str) and value]


def title_of(text: str) -> str:
    """Return the title of a conversation that begins with a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Typed words say more than the chips of files and pastes before them.
    typed = (_OPENING_CHIPS.sub("", line).strip() for line in lines)
    first = next(filter(None, typed), next(iter(lines), ""))
    return clean_line(" ".join(first.split()), MOST_TITLE_CHARS)


def model_key(path: ModelPlace | str) -> str:
    """Return the key of a model: the real path of its file, or the address of its server."""
    if is_remote(path):
        return str(path).partition("#")[0]
    return os.path.realpath(str(path))


def now_text() -> str:
    """Return the wall time as ISO text, only for display."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0

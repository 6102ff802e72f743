"""Daily checks and copies of the database, and repair of a damaged one.

``backup-1.db`` is the newest copy, ``backup-2.db`` the one before. A damaged database is renamed to
``damaged-1.db``. The new one gets all rows that can be read, and rows of the copies for
conversations whose readable messages agree.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from app.conversations.database import (
    BACKUPS,
    BUSY_S,
    MARK_NAME,
    NAME,
    DamagedError,
    can_search,
    cause_of,
    connect,
    make_tables,
    open_file,
    store_error,
    transact,
)
from app.conversations.locks import NAMES, InUseError, StoreError, take
from app.conversations.tables import has_table
from app.program import notices
from app.program.small_file import append_file, read_bounded
from app.text.clean_text import clean_line
from app.text.figures import counted
from engine.machine.files import safe_flags, sync_directory

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

COPY_PERIOD_S = 86400.0
REPAIR_NOTICE_NAME = "mended.txt"
"""File with the result of a repair, until a chat has shown it."""
_MOST_MENDED_BYTES = 1 << 14
_MOST_MENDED_CHARS = 600
_MOST_ASIDE = 100
_MOST_UNREADABLE = 5000
_SINGLE_STEPS = 200
"""Number of row numbers tried one by one before larger steps are taken."""
_PAGE_BYTES = 4096
_BUSY = 5
_LOCKED = 6
"""Error codes of SQLite, which Python names from 3.11 on."""
_CONVERSATION = (
    "id, title, system, began, changed, model, model_path, used, n_dropped, forked_from, "
    "unsent, waiting, adapters"
)
_MESSAGE = "conversation, place, role, tokens, n_bytes, text, more"
_BRANCH = "conversation, place, number, tokens, n_bytes, text, more"
_PIECE = "conversation, more"
_REMOVED = "conversation, key"
_LONG_DOCUMENT = "path, name, n_pages, n_lines, n_tokens"
_DRAFT = "content"
_MARK_TABLES = {
    "tag": "conversation, name",
    "pin": "conversation",
    "summary": "conversation, n_messages, n_dropped, text",
}
_DOCUMENT_TABLES = {"removed_document": _REMOVED, "long_document": _LONG_DOCUMENT}
_FIRST_TABLES = {"conversation": _CONVERSATION, "message": _MESSAGE, "piece": _PIECE}
_READ_TABLES = {
    **_FIRST_TABLES,
    **_DOCUMENT_TABLES,
    "draft": _DRAFT,
    "branch": _BRANCH,
    **_MARK_TABLES,
}
"""Columns of the tables that are read from a damaged database. Segments are left out: the saved
states that they name can be computed again."""


def run_transaction(
    root: Path | None, work: Callable[[sqlite3.Connection], T], writes: bool = False
) -> T:
    """Run ``work`` in one transaction, and repair the database first if it is damaged.

    Raises StoreError: nothing has changed.
    """
    try:
        with closing(connect(root)) as db:
            return transact(db, work, writes)
    except DamagedError:
        if root is None:
            raise
    repair(root)
    with closing(connect(root)) as db:
        return transact(db, work, writes)


def check_and_copy(root: Path | None, now_s: float) -> None:
    """Check and copy the database once a day. A damaged one is repaired at its next use.

    Raises StoreError: it cannot be read or copied.
    """
    if root is None or not os.path.lexists(root / NAME):
        return
    with suppress(OSError):
        if abs(now_s - (root / BACKUPS[0]).lstat().st_mtime) < COPY_PERIOD_S:
            return
    try:
        with closing(take(root, NAMES)), closing(connect(root)) as db:  # one copy at a time
            if _is_sound(db):
                _copy(db, root)
            else:
                os.close(os.open(root / MARK_NAME, safe_flags(os.O_WRONLY | os.O_CREAT), 0o600))
    except OSError as error:
        raise StoreError(cause_of(error)) from None


def _is_sound(db: sqlite3.Connection) -> bool:
    try:
        return transact(
            db, lambda db: db.execute("PRAGMA integrity_check(1)").fetchall(), writes=False
        ) == [("ok",)]
    except DamagedError:
        return False


def _copy(db: sqlite3.Connection, root: Path) -> None:
    import sqlite3

    path = _empty_file(root / "backup-new.db")
    with closing(open_file(path)) as copy:
        try:
            db.backup(copy, progress=partial(_give_up_waiting, time.monotonic() + BUSY_S))
            copy.execute("PRAGMA journal_mode=DELETE")
            copy.execute("DROP TABLE IF EXISTS search")  # a repair creates it again
            if has_table(copy, "draft"):
                copy.execute("DELETE FROM draft")  # Unsent text does not go into copies.
        except (sqlite3.Error, UnicodeDecodeError) as error:
            path.unlink()
            raise store_error(error, copy) from error
    if os.path.lexists(root / BACKUPS[0]):
        os.replace(root / BACKUPS[0], root / BACKUPS[1])
    os.replace(path, root / BACKUPS[0])
    sync_directory(root)


def _give_up_waiting(give_up_s: float, status: int, _n_left: int, _n_pages: int) -> None:
    """Stop a copy that waits too long for a lock. SQLite would try forever."""
    import sqlite3

    if status in (_BUSY, _LOCKED) and time.monotonic() > give_up_s:
        raise sqlite3.OperationalError("database is locked")


def _empty_file(path: Path) -> Path:
    for name in (path.name, *(f"{path.name}{suffix}" for suffix in ("-journal", "-wal", "-shm"))):
        path.with_name(name).unlink(missing_ok=True)
    with suppress(OSError):
        path.with_name(f"{path.name}.lock").rmdir()
    os.close(os.open(path, safe_flags(os.O_RDWR | os.O_CREAT | os.O_EXCL), 0o600))
    return path


def repair(root: Path) -> None:
    """Make a new database from readable rows and copies, and put the damaged one aside.

    Raises StoreError: nothing has changed.
    """
    with suppress(StoreError), closing(connect(root)) as db:
        transact(db, _renew_index, writes=True)
        if _is_sound(db):
            return
    try:
        with closing(take(root, 1, 0)):
            if not _is_damaged(root):  # another program has repaired it
                return
            path = _empty_file(root / "mended.db")
            exists = os.path.lexists(root / NAME)
            with closing(open_file(path)) as db:
                make_tables(db)
                if exists:
                    n_read = transact(db, lambda db: _take_rows(db, root / NAME), writes=True)
                else:
                    n_read = 0
                n_copied = sum(_take_missing(db, root / name) for name in BACKUPS)
            if exists:
                aside = _put_aside(root)
            else:
                aside = ""
            os.replace(path, root / NAME)
            (root / MARK_NAME).unlink(missing_ok=True)
            sync_directory(root)
    except InUseError:
        raise StoreError(
            f"{NAME} is damaged and in use: quit every jalopy, and the next start repairs it"
        ) from None
    except OSError as error:
        raise StoreError(f"{NAME} is damaged and cannot be repaired: {cause_of(error)}") from None
    if n_copied:
        copied_text = f", {n_copied:,} more from a copy"
    else:
        copied_text = ""
    if aside:
        aside_text = f"; the damaged file is now {aside}"
    else:
        aside_text = ""
    line = f"{NAME} was damaged: {counted(n_read, 'message')} recovered{copied_text}{aside_text}"
    notices.add(root / NAME, line)
    with suppress(OSError):
        append_file(root / REPAIR_NOTICE_NAME, f"{line}\n".encode())


def take_repair_notice(root: Path) -> str:
    """Return the results of repairs since the last chat, and forget them; "" if there was none."""
    path = root / REPAIR_NOTICE_NAME
    try:
        content = read_bounded(path, _MOST_MENDED_BYTES) or b""
        path.unlink()
    except OSError:
        return ""
    lines = dict.fromkeys(content.decode("utf-8", "replace").splitlines())
    return clean_line("; ".join(lines), _MOST_MENDED_CHARS)


def _renew_index(db: sqlite3.Connection) -> None:
    """Create the full-text index again."""
    if can_search(db):
        db.execute("INSERT INTO search(search) VALUES('rebuild')")


def _is_damaged(root: Path) -> bool:
    try:
        with closing(connect(root)) as db:
            return not _is_sound(db)
    except DamagedError:
        return True


def _put_aside(root: Path) -> str:
    """Rename the database and its write-ahead log, and return the new name."""
    names = (f"damaged-{n}.db" for n in range(1, _MOST_ASIDE + 1))
    name = next((candidate for candidate in names if not os.path.lexists(root / candidate)), "")
    if not name:
        raise StoreError(
            f"{NAME} is damaged again, and there are {_MOST_ASIDE} damaged files already "
            "(delete some)"
        )
    os.link(root / NAME, root / name)
    if os.path.lexists(root / f"{NAME}-wal"):
        os.replace(root / f"{NAME}-wal", root / f"{name}-wal")
    (root / f"{NAME}-shm").unlink(missing_ok=True)
    return name


def _take_rows(db: sqlite3.Connection, damaged: Path) -> int:
    """Copy every readable row and return the number of messages."""
    n_taken = _take_rows_of(db, damaged)
    if n_taken is not None:
        return n_taken
    # The first page says where tables begin. The tables of version 1 begin where they do in a new
    # database; later tables may have been added after other pages.
    patched = _empty_file(damaged.with_name("patched.db"))
    shutil.copyfile(damaged, patched)
    first = _first_page(patched)
    with patched.open("r+b") as file:
        file.write(first)
    try:
        return _take_rows_of(db, patched, _FIRST_TABLES) or 0
    finally:
        patched.unlink()


def _first_page(like: Path) -> bytes:
    fresh = _empty_file(like.with_name("fresh.db"))
    with closing(open_file(fresh)) as db:
        make_tables(db)
        db.execute("PRAGMA journal_mode=DELETE")
    page = fresh.read_bytes()[:_PAGE_BYTES]
    fresh.unlink()
    n_pages = (like.stat().st_size // _PAGE_BYTES).to_bytes(4, "big")
    return page[:28] + n_pages + page[32:]


def _take_rows_of(
    db: sqlite3.Connection, source: Path, tables: Iterable[str] = _READ_TABLES
) -> int | None:
    """Copy the rows of a database and return the number of messages; None if its tables are not
    known.
    """
    import sqlite3

    try:
        source_db = open_file(source)
    except StoreError:
        return None
    with closing(source_db):
        names: set[str] = set()
        with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
            names |= {name for (name,) in source_db.execute("SELECT name FROM sqlite_master")}
        if not {"conversation", "message"} <= names:
            return None
        n_rows = {
            table: _take_table(db, source_db, table, _READ_TABLES[table])
            for table in tables
            if table in names
        }
        return n_rows["message"]


def _take_table(
    db: sqlite3.Connection, source_db: sqlite3.Connection, table: str, columns: str
) -> int:
    return sum(_insert(db, table, columns, row) for row in _readable(source_db, table, columns))


def _readable(db: sqlite3.Connection, table: str, columns: str) -> Iterator[tuple[Any, ...]]:
    import sqlite3

    last = n_failed = 0
    while n_failed < _MOST_UNREADABLE:
        try:
            for row in db.execute(
                f"SELECT rowid, {columns} FROM {table} WHERE rowid > ? ORDER BY rowid", (last,)
            ):
                last = row[0]
                n_failed = 0
                yield row[1:]
            return
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            last = last + 1 + n_failed // _SINGLE_STEPS
            n_failed = n_failed + 1


def _insert(db: sqlite3.Connection, table: str, columns: str, row: tuple[Any, ...]) -> int:
    """Insert a row unless there is one in its position; return the number of inserted rows.

    A lost conversation gets an empty row.
    """
    import sqlite3

    # errors of hostile values; a full disk must stop the repair
    with suppress(sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, OverflowError):
        if columns.startswith("conversation,"):
            db.execute("INSERT OR IGNORE INTO conversation(id) VALUES(?)", row[:1])
        marks = ", ".join("?" * len(row))
        cursor = db.execute(f"INSERT OR IGNORE INTO {table}({columns}) VALUES({marks})", row)
        if table == "message" and cursor.rowcount and can_search(db):
            db.execute("INSERT INTO search(rowid, text) VALUES(?, ?)", (cursor.lastrowid, row[5]))
        return cursor.rowcount
    return 0


def _take_missing(db: sqlite3.Connection, backup: Path) -> int:
    """Copy what only a backup has and return the number of messages."""
    if not os.path.lexists(backup):
        return 0
    with suppress(DamagedError), closing(open_file(backup)) as backup_db:
        return transact(db, lambda db: _fill(db, backup_db), writes=True)
    return 0


def _fill(db: sqlite3.Connection, backup_db: sqlite3.Connection) -> int:
    n_taken = 0
    for row in _readable(backup_db, "conversation", _CONVERSATION):
        has_row = db.execute("SELECT began FROM conversation WHERE id=?", row[:1]).fetchone()
        texts = dict(db.execute("SELECT place, text FROM message WHERE conversation=?", row[:1]))
        messages = list(
            backup_db.execute(f"SELECT {_MESSAGE} FROM message WHERE conversation=?", row[:1])
        )
        if has_row and any(message[5] != texts.get(message[1], message[5]) for message in messages):
            continue  # The conversation was continued in another way.
        _insert(db, "conversation", _CONVERSATION, row)
        if has_row and has_row[0] is None:  # Its messages were there, but its row was lost.
            marks = ", ".join("?" * len(row))
            db.execute(
                f"UPDATE conversation SET ({_CONVERSATION}) = ({marks}) WHERE id=?", (*row, row[0])
            )
        n_taken += sum(_insert(db, "message", _MESSAGE, message) for message in messages)
        if has_table(backup_db, "branch"):
            sql = f"SELECT {_BRANCH} FROM branch WHERE conversation=?"
            for branch in backup_db.execute(sql, row[:1]).fetchall():
                _insert(db, "branch", _BRANCH, branch)
        for table, columns in _MARK_TABLES.items():
            if has_table(backup_db, table):
                sql = f"SELECT {columns} FROM {table} WHERE conversation=?"
                for mark in backup_db.execute(sql, row[:1]).fetchall():
                    _insert(db, table, columns, mark)
    for table, columns in _DOCUMENT_TABLES.items():
        if has_table(backup_db, table):
            _take_table(db, backup_db, table, columns)
    return n_taken

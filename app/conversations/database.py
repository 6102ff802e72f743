"""The SQLite database of all conversations, opened safely.

Only the owner can read ``conversations.db``. It has a write-ahead log if the file system can share
memory, otherwise a rollback journal. Its content is not trusted: an unknown schema is refused, and
so are triggers and views. ``upkeep`` repairs damage.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from app.conversations.locks import NAMES, InUseError, StoreError, take
from app.conversations.tables import (
    BRANCH_TABLES,
    DOCUMENT_TABLES,
    MARK_TABLES,
    TABLES,
    VERSION,
)
from app.program import paths
from app.program.small_file import read_bounded, replace_file
from app.text.clean_text import clean_line
from engine.machine.files import safe_flags, sync_directory

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

NAME = "conversations.db"
BACKUPS = ("backup-1.db", "backup-2.db")
"""Daily copies, the newest first."""
MARK_NAME = "damaged"
"""Marker file: a check found damage, and the next use repairs the database."""
ONLY_NAME = "only-process"
BUSY_S = 5.0
_LOG_VERSIONS = b"\2\2"
_LOG_VERSIONS_END = 20
"""Bytes 18 and 19 of a database with a write-ahead log."""
LEAST_PAGE_BYTES = 512
MOST_ROW_BYTES = 64 << 20
"""Limit on a text that SQLite reads or writes (Python 3.11 and later)."""
_CAUSES = {
    "database or disk is full": "the disk is full",
    "attempt to write a readonly database": "the disk is read-only",
    "unable to open database file": "its directory is not writable",
    "database is locked": "another jalopy keeps the saved conversations busy",
    "string or blob too big": "a message is too large (continue in a new conversation)",
    "disk I/O error": "the disk reports an input/output error",
}
_SYSTEM_CAUSES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be too large",
    errno.EROFS: "the disk is read-only",
}
_DAMAGE = ("malformed", "not a database", "invalid rootpage")
_SEARCH = (
    "CREATE VIRTUAL TABLE search USING fts5(text, content='message', content_rowid='id', "
    "tokenize='trigram', "
    "detail='none')"
)
"""Index of the trigrams of all messages. There is none if SQLite lacks FTS5."""


class DamagedError(StoreError):
    """The database or a part of it cannot be read."""


def transact(
    db: sqlite3.Connection,
    work: Callable[[sqlite3.Connection], T],
    writes: bool,
    is_durable: bool = True,
) -> T:
    """Run ``work`` in one transaction and return its result.

    A commit survives a kill of the program. With ``is_durable``, it and all earlier ones survive a
    power cut.

    Raises StoreError: nothing has changed.
    """
    import sqlite3

    try:
        if writes:
            db.execute(f"PRAGMA synchronous={'FULL' if is_durable else 'NORMAL'}")
        db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
        try:
            result = work(db)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise store_error(error, db) from error
    return result


def connect(root: Path | None) -> sqlite3.Connection:
    """Open the database, or create it.

    Raises StoreError: it cannot be used.
    """
    try:
        import sqlite3  # noqa: F401 - fails here if it is missing
    except ImportError:
        raise StoreError(
            "Python's sqlite3 module is missing (install your system's package for it)"
        ) from None
    try:
        if root is None or (
            paths.private_directory(root) is None and not os.path.lexists(root / NAME)
        ):
            raise StoreError("the state directory is not writable")
        path = root / NAME
        is_new = not _require_own_file(path)
        if is_new:
            size = 0
        else:
            size = path.stat().st_size
        has_copies = any(os.path.lexists(root / name) for name in BACKUPS)
        # SQLite takes a file that is shorter than a page for a new database.
        if (
            os.path.lexists(root / MARK_NAME)
            or (has_copies and not size)
            or 0 < size < LEAST_PAGE_BYTES
        ):
            raise DamagedError(f"{NAME} is damaged")
        if is_new:
            # An existing file is never opened here: closing it would release SQLite's locks.
            with suppress(FileExistsError):
                os.close(os.open(path, safe_flags(os.O_RDWR | os.O_CREAT | os.O_EXCL), 0o600))
            sync_directory(root)
        db = open_file(path)
    except OSError as error:
        raise StoreError(cause_of(error)) from None
    try:
        make_tables(db)
        upgrade(db, root)
    except BaseException:
        db.close()
        raise
    return db


def open_file(path: Path) -> sqlite3.Connection:
    """Open an existing SQLite file without trusting its content.

    Every file of the directory is locked in the same way, because SQLite would wait forever on a
    system
    without locks.

    Raises:
        StoreError: the file cannot be used.
        OSError: as ``has_locks``.
    """
    import sqlite3

    is_alone = False
    if not os.access(path.parent, os.W_OK):
        options = "immutable=1"
    elif has_locks(path.parent):
        options = "mode=rw"
    else:
        is_alone = True
        options = "mode=rw&vfs=unix-dotfile"
    address = f"file:{quote(os.fspath(path))}?{options}"
    db: sqlite3.Connection | None = None
    try:
        db = sqlite3.connect(
            address, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        # Python 3.10 has neither; SQLITE_DBCONFIG needs 3.12.
        for method, name, value in (
            ("setlimit", "SQLITE_LIMIT_LENGTH", MOST_ROW_BYTES),
            ("setconfig", "SQLITE_DBCONFIG_DEFENSIVE", True),
        ):
            if hasattr(db, method):
                getattr(db, method)(getattr(sqlite3, name), value)
        if is_alone and _has_log(path):
            _leave_log(db)
        for setting in (
            "trusted_schema=OFF",
            "cell_size_check=ON",
            "foreign_keys=ON",
            "secure_delete=ON",
        ):
            db.execute(f"PRAGMA {setting}")
    except (sqlite3.Error, UnicodeDecodeError) as error:
        store_failure = store_error(error, db)
        if db is not None:
            db.close()
        raise store_failure from error
    return db


def _has_log(path: Path) -> bool:
    """Whether the database has a write-ahead log, from a time when files could be locked."""
    with path.open("rb") as file:  # Closing a file releases SQLite's locks; there are none here.
        return file.read(_LOG_VERSIONS_END).endswith(_LOG_VERSIONS)


def _leave_log(db: sqlite3.Connection) -> None:
    """Change to a rollback journal.

    A write-ahead log needs shared memory, or exclusive use of the database.
    """
    for setting in ("locking_mode=EXCLUSIVE", "journal_mode=DELETE", "locking_mode=NORMAL"):
        db.execute(f"PRAGMA {setting}")
    db.execute(
        "SELECT count(*) FROM sqlite_master"
    ).fetchone()  # This read ends the exclusive lock.


def make_tables(db: sqlite3.Connection) -> None:
    """Create the tables of a new database. Raises StoreError: the tables of another program."""
    import sqlite3

    try:
        _make_tables(db)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise store_error(error, db) from error


def _make_tables(db: sqlite3.Connection) -> None:
    import sqlite3

    db.execute("BEGIN")  # Schema and version must be of the same moment.
    schema = {
        (type_name, name): sql
        for type_name, name, sql in db.execute("SELECT type, name, sql FROM sqlite_master")
    }
    (version,) = db.execute("PRAGMA user_version").fetchone()
    db.execute("COMMIT")
    if version > VERSION:
        raise StoreError(f"{NAME} was written by a newer version of the program: left as it is")
    if not schema and version == 0:
        with suppress(sqlite3.OperationalError):  # not on a file system without shared memory
            db.execute("PRAGMA journal_mode=WAL")
        db.execute("BEGIN IMMEDIATE")
        if not db.execute("SELECT 1 FROM sqlite_master").fetchone():  # another program was faster
            for sql in TABLES[VERSION]:
                db.execute(sql)
            with suppress(sqlite3.OperationalError):  # SQLite without FTS5
                db.execute(_SEARCH)
            db.execute(f"PRAGMA user_version={VERSION}")
        db.execute("COMMIT")
        return
    tables = set(TABLES.get(version, ()))
    texts = {sql for (_, name), sql in schema.items() if sql and not name.startswith("search_")}
    has_only_tables = {type_name for type_name, _ in schema} <= {"table", "index"}
    if not (tables and tables <= texts <= {*tables, _SEARCH} and has_only_tables):
        raise StoreError(
            f"{NAME} is not a database of conversations (move it away to begin a new one)"
        )


def upgrade(db: sqlite3.Connection, root: Path) -> None:
    """Add the tables that an older database lacks, and move what is in other tables now.

    The database stays as it is if it cannot be written now.
    """
    import sqlite3

    if _version(db) == VERSION:
        return
    from app.conversations.older_files import import_older_files, move_alternatives

    def change(db: sqlite3.Connection) -> None:
        version = _version(db)  # another program may have been faster
        if version < 2:
            for sql in DOCUMENT_TABLES:
                db.execute(sql)
            import_older_files(db, root)
        if version < 3:
            for sql in BRANCH_TABLES:
                db.execute(sql)
            move_alternatives(db)
        if version < VERSION:
            for sql in MARK_TABLES:
                db.execute(sql)
            db.execute(f"PRAGMA user_version={VERSION}")

    with suppress(StoreError, sqlite3.Error):
        transact(db, change, writes=True)


def _version(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def can_search(db: sqlite3.Connection) -> bool:
    """Whether the full-text index can be used."""
    import sqlite3

    try:
        db.execute("SELECT 1 FROM search LIMIT 0")
    except sqlite3.OperationalError:
        return False
    return True


def store_error(error: Exception, db: sqlite3.Connection | None = None) -> StoreError:
    """Describe an error of SQLite in the program's words.

    SQLite quotes damaged bytes, which Python cannot decode.
    """
    text = str(error)
    # The full-text index reports no more than this; tables name their constraints.
    if (
        isinstance(error, UnicodeDecodeError)
        or text == "constraint failed"
        or any(word in text for word in _DAMAGE)
    ):
        return DamagedError(f"{NAME} is damaged")
    # This also means that there is no room for the index of the write-ahead log.
    if "I/O error" in text and db is not None:
        with suppress(Exception):
            if not os.statvfs(
                os.path.dirname(db.execute("PRAGMA database_list").fetchone()[2])
            ).f_bavail:
                return StoreError("the disk is full")
    return StoreError(_CAUSES.get(text, text))


def cause_of(error: OSError) -> str:
    """Describe an error of the system in a few words."""
    return _SYSTEM_CAUSES.get(error.errno or 0) or clean_line(
        error.strerror or os.strerror(errno.EIO), 80
    )


def _require_own_file(path: Path) -> bool:
    """Return whether the file exists, and close it to other users.

    Raises StoreError: the file is not a regular file of this user; OSError.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{path.name} is not a regular file")
    if status.st_uid != os.geteuid():
        raise StoreError(f"{path.name} belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        with suppress(OSError):
            path.chmod(0o600)
    return True


# ---- file systems without locks


def has_locks(root: Path) -> bool:
    """Whether files can be locked in the directory.

    Without locks only one process may use the database: SQLite then locks with a file that stays
    after
    a kill, and the new only process removes it.

    Raises InUseError: another process uses the database; OSError.
    """
    try:
        lock = take(root, NAMES)
    except (InUseError, PermissionError):
        return True
    lock.close()
    if not lock.is_known:
        _become_the_only_one(root)
    return lock.is_known


def _become_the_only_one(root: Path) -> None:
    host = os.uname().nodename
    path = root / ONLY_NAME
    with suppress(FileNotFoundError):
        owner = clean_line((read_bounded(path, 1000) or b"").decode("utf-8", "replace"), 100)
        pid, _, owner_host = owner.partition(" ")
        if owner == f"{os.getpid()} {host}":
            return
        if owner_host != host or (pid.isdecimal() and Path("/proc", pid).exists()):
            raise InUseError(
                f"files cannot be locked here, and process {owner} saves there (or remove {path})"
            )
    replace_file(path, f"{os.getpid()} {host}".encode(), durable=False)
    for name in (NAME, *BACKUPS):
        with suppress(OSError):
            (root / f"{name}.lock").rmdir()

"""One conversation's log on disk: opened safely, locked for as long as it is open, appended to all or nothing.

The lock is the kernel's and ends with the process (``flock``; on Windows ``msvcrt.locking`` on a byte far behind the
log's end, since what is locked there cannot be read either). A note says whose it is; it is only believed while the
lock is held, and says nothing that matters.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from enum import Enum
from pathlib import Path

from app.conversations.records import checksum_of, read_record
from app.conversations.replay import NewerVersionError, Replay, Saved, UnsoundRecordError
from app.program.small_file import read_json_object, replace_file, safe_flags
from app.text.record import record
from engine.machine.directories import sync_directory

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:
    msvcrt = None  # type: ignore[assignment]

HOLDER_NAME = "in-use.json"
_LOCKED_AT = (1 << 31) - 2
"""Offset of the locked byte, behind the end of any log; Windows takes offsets of 32 bits."""
_MOST_FILE_BYTES = 4096
_HAS_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
NO_LOCKS = "conversations lie where files cannot be locked: let no two programs go on with the same one at once"
MOST_LOG_BYTES = 64 << 20
"""A longer log is neither written nor read: weeks of writing do not fill it."""
IN_USE = "in use by another jalopy"
_MOST_COPIES = 100
_MOST_PLACES = 3
MOST_DAMAGED_LINES = 1000
"""Damaged lines after which reading stops: the file is not a log."""


class Held(Enum):
    """Who has a file."""

    HERE = "here"
    ELSEWHERE = "elsewhere"
    UNKNOWN = "unknown"
    """Its file system has no locks."""


def lock(handle: int) -> Held:
    """Lock an open file for as long as it is open, where no other process has it. Raises OSError: that failed."""
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Held.ELSEWHERE
        except OSError as error:
            if error.errno not in _HAS_NO_LOCKS:
                raise
            return Held.UNKNOWN
    elif msvcrt is not None:
        os.lseek(handle, _LOCKED_AT, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        except OSError:
            return Held.ELSEWHERE
    return Held.HERE


def let_go(handle: int) -> None:
    """Close a file that may be locked, and unlock it before that, where the system may take its time with closing."""
    if fcntl is None and msvcrt is not None:
        with suppress(OSError):
            os.lseek(handle, _LOCKED_AT, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    os.close(handle)


def note_holder(directory: Path) -> None:
    """Write down who has the lock, for others to name; a failure costs them the name."""
    content = {"pid": os.getpid(), "since": datetime.now().astimezone().isoformat(timespec="seconds")}
    with suppress(OSError):
        replace_file(directory / HOLDER_NAME, json.dumps(content).encode("ascii"), durable=False)


def holder_of(directory: Path) -> str:
    """Say who holds the lock, as "process 4711, since 13:05"; "" where that is not known."""
    values = read_json_object(directory / HOLDER_NAME, _MOST_FILE_BYTES)
    try:
        pid, since = values["pid"], datetime.fromisoformat(values["since"]).astimezone()
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return ""
    import psutil

    if type(pid) is not int or not 0 < pid < 1 << 31 or not psutil.pid_exists(pid):
        return ""
    is_today = since.date() == datetime.now().astimezone().date()
    return f"process {pid}, since {since:{'%H:%M' if is_today else '%Y-%m-%d %H:%M'}}"


class LogRefusedError(Exception):
    """The log cannot be used as it stands; the message is a line that says why."""


@record
class ReadLog:
    """Content of a log."""

    saved: Saved
    good_bytes: int
    """Behind these nothing was read."""
    n_damaged_lines: int = 0
    """Lines which say nothing, or nothing that can be so."""

    @property
    def is_damaged(self) -> bool:
        """Whether it can hardly be a log, and reading stopped."""
        return self.n_damaged_lines > MOST_DAMAGED_LINES

    @property
    def damage(self) -> str:
        """How much cannot be read, what that lacks, and what it means for the model; "" where all is well."""
        messages, lost = self.saved.conversation.messages, set(self.saved.lost_behind)
        places: list[str] = []
        n_there = 0
        for index, message in enumerate(messages):
            is_gap = message.is_missing and not (index and messages[index - 1].is_missing)
            if is_gap or (index in lost and not message.is_missing):
                places.append(f"between messages {n_there} and {n_there + 1}" if n_there else "before message 1")
            n_there += not message.is_missing
        if self.saved.is_end_lost or len(messages) in lost:
            places.append(f"behind message {n_there}" if n_there else "in it")
        said = [f"what was said {_listed(places)} is missing"] if places else []
        if any(message.is_missing for message in messages):
            said.append("the model goes on behind that")
        if messages and not self.saved.has_head:
            said.append("the system prompt is missing")
        if not self.n_damaged_lines:
            return "; ".join(said)
        lines = (
            "1 line of its file is" if self.n_damaged_lines == 1 else f"{self.n_damaged_lines} lines of its file are"
        )
        return f"{lines} damaged: {', '.join(said) or 'no message is missing'}"


def read_log(content: bytes) -> ReadLog:
    """Read every sound line, but what cannot stand without others. Raises LogRefusedError: a newer version's."""
    replay, pos, good_bytes, n_damaged = Replay(), 0, 0, 0
    while n_damaged <= MOST_DAMAGED_LINES and (end := content.find(b"\n", pos)) >= 0:
        line, pos = content[pos:end], end + 1
        try:
            record = read_record(line)
            if record is None:
                raise UnsoundRecordError
            replay.take(record, checksum_of(line))
            good_bytes = pos
        except UnsoundRecordError:
            replay.note_lost()
            n_damaged += 1
        except NewerVersionError:
            raise LogRefusedError("written by a newer version of the program: left as it is") from None
    return ReadLog(replay.finish(), good_bytes if n_damaged > MOST_DAMAGED_LINES else pos, n_damaged)


class LogFile:
    """An open log. Only one process at a time has it; where it ``is_locked``, other programs find it in use."""

    def __init__(self, path: Path, handle: int, is_locked: bool = True) -> None:
        self.path, self._handle, self.is_locked = path, handle, is_locked
        self.size = self.synced = os.fstat(handle).st_size
        """Bytes that are written, and those that outlive a power cut."""

    @classmethod
    def create(cls, path: Path) -> LogFile:
        """Create an empty log in a directory that exists. Raises OSError: it cannot be created, or is there already."""
        return cls._locked(path, os.O_CREAT | os.O_EXCL)

    @classmethod
    def open(cls, path: Path) -> LogFile:
        """Open a log. Raises LogRefusedError: not the user's, no plain file, or in use; OSError: it cannot be."""
        return cls._locked(path)

    @classmethod
    def _locked(cls, path: Path, flags: int = 0) -> LogFile:
        handle = os.open(path, _flags(flags), 0o600)
        try:
            _require_own_file(handle)
            held = lock(handle)
            if held is Held.ELSEWHERE:
                holder = holder_of(path.parent)
                raise LogRefusedError(f"{IN_USE}{f' ({holder})' if holder else ''}")
            note_holder(path.parent)
            return cls(path, handle, held is Held.HERE)
        except BaseException:
            os.close(handle)
            raise

    def load(self) -> tuple[ReadLog, str]:
        """Read all of it; cut a torn end off, and set aside what can hardly be a log; return a notice, or "", too.

        Damaged lines stay where they are: they are left out again by whoever reads the log next.
        Raises LogRefusedError: it cannot be used; OSError: it cannot be read, or not be mended.
        """
        content = _read_all(self._handle)
        found = read_log(content)
        if found.is_damaged:
            copy = self._set_aside(content)
            self._cut(found.good_bytes)
            return found, f"{self.path.parent.name}: damaged from byte {found.good_bytes} on; a copy is in {copy.name}"
        self._cut(found.good_bytes)  # a last record that was not finished goes
        return found, found.damage

    def append(self, lines: Sequence[bytes]) -> None:
        """Write lines at the end. Raises LogRefusedError: the file grows too long; OSError: it is cut to its size."""
        self._cut(self.size)
        data = memoryview(b"".join(lines))
        if self.size + len(data) > MOST_LOG_BYTES:
            raise LogRefusedError(f"its file is full, at {MOST_LOG_BYTES >> 20} MiB (go on in a new one)")
        try:
            done = 0
            while done < len(data):
                done += os.write(self._handle, data[done:])
        except BaseException:
            with suppress(OSError):
                self._cut(self.size)
            raise
        self.size += len(data)

    def sync(self) -> None:
        """Let all that is written outlive a power cut. Raises OSError: write anew what was not synced."""
        os.fsync(self._handle)
        self.synced = self.size

    def sync_directories(self) -> None:
        """Let the names of a new log outlive a power cut. Raises OSError: that failed."""
        for directory in (self.path.parent, self.path.parent.parent):
            sync_directory(directory)

    def forget_unsynced(self) -> None:
        """Write what comes next in place of everything that is not synced."""
        self.size = self.synced
        with suppress(OSError):
            self._cut(self.size)

    def close(self) -> None:
        """Let go of file and lock."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            let_go(handle)

    def _cut(self, size: int) -> None:
        if os.fstat(self._handle).st_size != size:
            os.ftruncate(self._handle, size)
        self.size = size
        self.synced = min(self.synced, size)

    def _set_aside(self, content: bytes) -> Path:
        for n in range(_MOST_COPIES):
            copy = self.path.with_name(f"{self.path.name}{f'.{n}' if n else ''}.corrupt")
            try:
                handle = os.open(copy, _flags(os.O_CREAT | os.O_EXCL), 0o600)
            except FileExistsError:
                continue
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            return copy
        raise LogRefusedError(f"damaged, and {_MOST_COPIES} damaged copies lie beside it: left as it is")


def read_only(path: Path) -> ReadLog:
    """Read a log without locking or mending it. Raises LogRefusedError: it cannot be used; OSError: nor be read."""
    with os.fdopen(os.open(path, safe_flags(os.O_RDONLY)), "rb") as file:
        _require_own_file(file.fileno())
        return read_log(_read_all(file.fileno()))


def is_in_use(path: Path) -> bool:
    """Whether a program has a log open. Where there is no log nobody has."""
    try:
        handle = os.open(path, _flags())
    except OSError:
        return False
    try:
        return lock(handle) is Held.ELSEWHERE
    except OSError:
        return False
    finally:
        let_go(handle)


def _flags(more: int = 0) -> int:
    return safe_flags(os.O_RDWR | os.O_APPEND | more)


def _require_own_file(handle: int) -> None:
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        raise LogRefusedError("no plain file")
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise LogRefusedError("belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o077 and hasattr(os, "fchmod"):
        with suppress(OSError):
            os.fchmod(handle, 0o600)


def _read_all(handle: int) -> bytes:
    size = os.fstat(handle).st_size
    if size > MOST_LOG_BYTES:
        raise LogRefusedError(f"larger than {MOST_LOG_BYTES >> 20} MiB")
    os.lseek(handle, 0, os.SEEK_SET)  # what is appended goes to the end all the same
    with os.fdopen(handle, "rb", closefd=False) as file:
        return file.read(size)


def _listed(places: Sequence[str]) -> str:
    more = len(places) - _MOST_PLACES
    shown = ", ".join(places[:_MOST_PLACES])
    return f"{shown} and in {more} more {'place' if more == 1 else 'places'}" if more > 0 else shown

"""Who has a conversation: a lock on its log that ends with the process, and a note of whose it is.

The lock is the kernel's (``flock``; on Windows ``msvcrt.locking`` on a byte far behind the log's end, since what is
locked there cannot be read either). The note is only believed while the lock is held, and says nothing that matters.
"""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from datetime import datetime
from enum import Enum
from pathlib import Path

from app.program.small_file import read_json_object, replace_file

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


def unlock(handle: int) -> None:
    """Let go before the file is closed, where the system may take its time with that."""
    if fcntl is None and msvcrt is not None:
        with suppress(OSError):
            os.lseek(handle, _LOCKED_AT, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined, unused-ignore]


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
    if type(pid) is not int or not 0 < pid < 1 << 31 or not _is_running(pid):
        return ""
    is_today = since.date() == datetime.now().astimezone().date()
    return f"process {pid}, since {since:{'%H:%M' if is_today else '%Y-%m-%d %H:%M'}}"


def _is_running(pid: int) -> bool:
    import psutil

    return bool(psutil.pid_exists(pid))

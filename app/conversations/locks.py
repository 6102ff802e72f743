"""Who has a conversation: a lock on its place in ``in-use.lock``, which the kernel takes back from
a dead process.

The locks are those of an open file (``F_OFD_SETLK``), so two parts of one process exclude each
other too. A note in a place says who has it; it is only believed while the lock is held, and
nothing that matters depends on it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from app.program import exit_codes, paths
from engine.machine.regular_file import safe_flags

LOCK_NAME = "in-use.lock"
NAMES = 0
"""The place of a program that looks for a title and begins a conversation with it."""
IN_USE = "in use by another jalopy"
NO_LOCKS = (
    "conversations are where files cannot be locked: no other jalopy can save there until this "
    "one ends"
)
_PLACE_BYTES = 64
_HAS_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
_PATIENCE_S = 20.0
_PERIOD_S = 0.02


class StoreError(Exception):
    """The conversations, or one of them, cannot be used as they are; the message is a line that
    says why."""

    exit_code = exit_codes.IO_ERROR


class InUseError(StoreError):
    """Another program, or another part of this one, has it."""


class Lock:
    """A lock that is held until it is closed; ``is_known`` is False where the file system has no
    locks."""

    def __init__(self, handle: int, is_known: bool) -> None:
        self._handle = handle
        self.is_known = is_known

    def close(self) -> None:
        """Let go."""
        handle = self._handle
        self._handle = -1
        if handle >= 0:
            os.close(handle)


def take(root: Path, number: int, n_places: int = 1) -> Lock:
    """Lock places from a number on; 0 places: all of them.

    Raises InUseError; OSError: the file cannot be used.
    """
    handle = os.open(root / LOCK_NAME, safe_flags(os.O_RDWR | os.O_CREAT), 0o600)
    try:
        start = number * _PLACE_BYTES
        length = n_places * _PLACE_BYTES
        try:
            fcntl.fcntl(
                handle,
                fcntl.F_OFD_SETLK,
                struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0),
            )
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise InUseError(_told(os.pread(handle, _PLACE_BYTES, start))) from None
            if error.errno not in _HAS_NO_LOCKS:
                raise
            return Lock(handle, is_known=False)
        if n_places:
            with suppress(OSError):
                note = f"{os.getpid()} {datetime.now().astimezone().isoformat(timespec='seconds')}"
                os.pwrite(handle, note.encode("ascii").ljust(_PLACE_BYTES), start)
        return Lock(handle, is_known=True)
    except BaseException:
        os.close(handle)
        raise


@contextmanager
def alone(root: Path | None) -> Iterator[None]:
    """Keep others out who look for a title, where files can be locked.

    Raises StoreError: one is here for too long.
    """
    lock: Lock | None = None
    give_up_s = time.monotonic() + _PATIENCE_S
    while root is not None and lock is None and paths.private_directory(root) is not None:
        try:
            lock = take(root, NAMES)
        except InUseError:
            if time.monotonic() > give_up_s:
                raise StoreError("another jalopy keeps the saved conversations busy") from None
            time.sleep(_PERIOD_S)
        except OSError:
            break
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def _told(note: bytes) -> str:
    """Say who has it, as "in use by another jalopy (process 4711, since 13:05)", as far as the note
    can be believed."""
    import psutil

    try:
        number, _, moment = note.decode("ascii").strip().partition(" ")
        pid = int(number)
        since = datetime.fromisoformat(moment).astimezone()
    except (ValueError, OverflowError, OSError):
        return IN_USE
    if not 0 < pid < 1 << 31 or not psutil.pid_exists(pid):
        return IN_USE
    is_today = since.date() == datetime.now().astimezone().date()
    return f"{IN_USE} (process {pid}, since {since:{'%H:%M' if is_today else '%Y-%m-%d %H:%M'}})"

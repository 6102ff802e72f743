"""Locks of conversations: one slot of ``in-use.lock`` for each, released by the kernel if a process
dies.

Locks belong to an open file (``F_OFD_SETLK``), so two parts of one process exclude each other, too.
The text of a slot names its owner. It is believed only while the lock is held, and only shown.
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
from engine.machine.files import safe_flags

LOCK_NAME = "in-use.lock"
NAMES = 0
"""Number of the slot that a program locks while it looks up a title."""
IN_USE = "in use by another jalopy"
NO_LOCKS = (
    "Files cannot be locked where conversations are saved: no other jalopy can save until this "
    "one ends"
)
_SLOT_BYTES = 64
_HAS_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
_PATIENCE_S = 20.0
_PERIOD_S = 0.02


class StoreError(Exception):
    """The conversations cannot be used; the message says why in one line."""

    exit_code = exit_codes.IO_ERROR


class InUseError(StoreError):
    """The conversation is in use by another program, or by another part of this one."""


class Lock:
    """A lock, held until ``close``. ``is_known`` is False on a file system without locks."""

    def __init__(self, handle: int, is_known: bool) -> None:
        self._handle = handle
        self.is_known = is_known

    def close(self) -> None:
        """Release the lock."""
        handle = self._handle
        self._handle = -1
        if handle >= 0:
            os.close(handle)


def take(root: Path, number: int, n_slots: int = 1) -> Lock:
    """Lock slots from a number on; 0 slots lock all of them.

    Raises InUseError; OSError: the file cannot be used.
    """
    handle = os.open(root / LOCK_NAME, safe_flags(os.O_RDWR | os.O_CREAT), 0o600)
    try:
        start = number * _SLOT_BYTES
        length = n_slots * _SLOT_BYTES
        try:
            fcntl.fcntl(
                handle,
                fcntl.F_OFD_SETLK,
                struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0),
            )
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise InUseError(_describe_owner(os.pread(handle, _SLOT_BYTES, start))) from None
            if error.errno not in _HAS_NO_LOCKS:
                raise
            return Lock(handle, is_known=False)
        if n_slots:
            with suppress(OSError):
                owner = f"{os.getpid()} {datetime.now().astimezone().isoformat(timespec='seconds')}"
                os.pwrite(handle, owner.encode("ascii").ljust(_SLOT_BYTES), start)
        return Lock(handle, is_known=True)
    except BaseException:
        os.close(handle)
        raise


@contextmanager
def alone(root: Path | None) -> Iterator[None]:
    """Keep other programs from looking up titles, if files can be locked.

    Raises StoreError: another program takes too long.
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


def _describe_owner(owner: bytes) -> str:
    """Describe the owner of a slot: "in use by another jalopy (process 4711, since 13:05)"."""
    import psutil

    try:
        number, _, moment = owner.decode("ascii").strip().partition(" ")
        pid = int(number)
        since = datetime.fromisoformat(moment).astimezone()
    except (ValueError, OverflowError, OSError):
        return IN_USE
    if not 0 < pid < 1 << 31 or not psutil.pid_exists(pid):
        return IN_USE
    is_today = since.date() == datetime.now().astimezone().date()
    return f"{IN_USE} (process {pid}, since {since:{'%H:%M' if is_today else '%Y-%m-%d %H:%M'}})"

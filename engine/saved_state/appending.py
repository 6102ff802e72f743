"""A state file being written: made whole under another name, then appended to. Knows no sessions and no threads."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from engine.errors import shown
from engine.machine.directories import sync_directory
from engine.saved_state.layout import HEADER_BYTES, LONGEST_HEADER_BYTES, Header, StateRefusedError, read_header
from engine.saved_state.origin import Origin
from engine.saved_state.record import record_head
from engine.saved_state.state_file import NO_FOLLOW, opened, unsafe

RESERVE_BYTES = 64 << 20
"""Room on the device that a disposable cache leaves to others, the transcript first of all."""
_COMMON = os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | NO_FOLLOW


class NoRoomError(OSError):
    """Writing on would take the device's last room, or more than the quota."""


class StateFile:
    """One file, open for appending records.

    A file that is new lies beside its place until ``publish``: what was there before stays whole until then.

    Attributes:
        length: tokens that its records say.
        end: bytes that are known to be good.
        digest: of the last record.
        is_published: it lies in its place.
    """

    def __init__(self, path: Path, fd: int, at: tuple[int, bytes, int], is_published: bool) -> None:
        self._path = path
        self._fd = fd
        self.end, self.digest, self.length = at
        self.is_published = is_published
        self._is_synced = is_published

    @classmethod
    def create(cls, path: Path, header: Header) -> StateFile:
        """Begin a new file.

        Raises:
            OSError: it cannot be made; nothing is left of it.
        """
        place = temporary(path)
        with suppress(FileNotFoundError):
            os.unlink(place)
        raw = header.to_bytes()
        fd = os.open(place, _COMMON | os.O_CREAT | os.O_EXCL, 0o600)
        made = cls(path, fd, (0, raw[-32:], 0), is_published=False)
        try:
            made._write(raw)
        except BaseException:
            made.close()
            raise
        return made

    @classmethod
    def resume(cls, origin: Origin) -> StateFile | None:
        """Go on with the file that a session has in common; None where it is not that file any more."""
        try:
            fd = os.open(origin.path, _COMMON)
        except OSError:
            return None
        try:
            found = os.fstat(fd)
            os.lseek(fd, 0, os.SEEK_SET)
            if unsafe(found) or found.st_size < origin.end or os.read(fd, HEADER_BYTES) != origin.header.to_bytes():
                raise OSError("another file")
            os.ftruncate(fd, origin.end)  # a torn tail, if there is one
        except OSError:
            os.close(fd)
            return None
        return cls(origin.path, fd, (origin.end, origin.digest, origin.length), is_published=True)

    def append(self, first: int, token_ids: list[int], payload: memoryview, crc: int) -> None:
        """Write a record behind the others; what they say from ``first`` on is dead then.

        Raises:
            OSError: it could not be written; the file says what it said before.
        """
        head, digest = record_head(first, token_ids, len(payload), crc, self.digest)
        try:
            self._write(head, payload)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, self.end)
            raise
        self.digest, self.length = digest, first + len(token_ids)

    def _write(self, *parts: bytes | memoryview) -> None:
        """Write behind what is known to be good, which moves on only when all of it is written."""
        free_bytes, n_bytes = shutil.disk_usage(self._path.parent).free, sum(map(len, parts))
        if free_bytes < n_bytes + RESERVE_BYTES:
            raise NoRoomError("the disk is nearly full")
        os.lseek(self._fd, self.end, os.SEEK_SET)
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        self.end += n_bytes
        self._is_synced = False

    def sync(self) -> None:
        """Have the device hold what was appended.

        Raises:
            OSError: it may not; the file is not to be appended to any more.
        """
        if not self._is_synced:
            os.fsync(self._fd)
            self._is_synced = True

    def publish(self) -> None:
        """Put a new file, complete, into its place, where it replaces what was there.

        Raises:
            OSError: it is not there; what was there still is.
        """
        self.sync()
        os.close(self._fd)  # or some systems do not let it be renamed
        self._fd = -1
        os.replace(temporary(self._path), self._path)
        self._fd = os.open(self._path, _COMMON)
        self.is_published = True
        sync_directory(self._path.parent)

    def is_in_place(self) -> bool:
        """Whether the file is still the one that its name leads to."""
        if not self.is_published:
            return True
        try:
            named, own = os.lstat(self._path), os.fstat(self._fd)
        except OSError:
            return False
        return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino) and own.st_size == self.end

    def close(self) -> None:
        """Let go of the file; one that was never published is removed."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)
        if not self.is_published:
            with suppress(OSError):
                os.unlink(temporary(self._path))


def refuse_newer(path: Path) -> None:
    """Let a file of a newer version be: it may be wanted again.

    Raises:
        StateRefusedError: there is one.
    """
    try:
        with opened(path) as fd:
            read_header(os.read(fd, LONGEST_HEADER_BYTES), shown(path.name))
    except OSError:
        return
    except StateRefusedError as error:
        if error.is_newer:
            raise


def temporary(path: Path) -> Path:
    """Where a file lies until it is complete: beside its place, hidden, one for each."""
    return path.with_name(f".{path.name}.new")

"""Writing a state file: created under a temporary name, published when complete, then appended to."""

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
"""Free space in bytes that state files leave on the device, so that conversations can still be saved."""
_COMMON = os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | NO_FOLLOW


class NoRoomError(OSError):
    """Writing more would exceed the quota or leave less than ``RESERVE_BYTES`` free on the device."""


class StateFile:
    """One file, open for appending records.

    A new file has a temporary name beside its final place until ``publish``; an earlier file there is kept until then.

    Attributes:
        length: number of tokens that the records describe.
        end: length of the valid part, in bytes.
        digest: of the last record.
        is_published: whether the file is in its final place.
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
            OSError: it cannot be created; no partial file remains.
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
        """Continue the file of an ``Origin``; None if the file at its path is another one now."""
        try:
            fd = os.open(origin.path, _COMMON)
        except OSError:
            return None
        try:
            found = os.fstat(fd)
            os.lseek(fd, 0, os.SEEK_SET)
            if unsafe(found) or found.st_size < origin.end or os.read(fd, HEADER_BYTES) != origin.header.to_bytes():
                raise OSError("another file")
            os.ftruncate(fd, origin.end)  # drops a torn tail
        except OSError:
            os.close(fd)
            return None
        return cls(origin.path, fd, (origin.end, origin.digest, origin.length), is_published=True)

    def append(self, first: int, token_ids: list[int], payload: memoryview, crc: int) -> None:
        """Append a record; it replaces what earlier records say from position ``first`` on.

        Raises:
            OSError: it could not be written; the file's content is unchanged.
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
        """Write behind the valid part; ``end`` advances only when everything is written."""
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
        """Flush appended records to the device (fsync).

        Raises:
            OSError: the flush failed; do not append to this file any more.
        """
        if not self._is_synced:
            os.fsync(self._fd)
            self._is_synced = True

    def publish(self) -> None:
        """Move a complete new file to its final place, replacing an earlier one.

        Raises:
            OSError: it was not moved; the earlier file is unchanged.
        """
        self.sync()
        os.close(self._fd)  # some systems refuse to rename open files
        self._fd = -1
        os.replace(temporary(self._path), self._path)
        self._fd = os.open(self._path, _COMMON)
        self.is_published = True
        sync_directory(self._path.parent)

    def is_in_place(self) -> bool:
        """True if the path still leads to this file and its length is unchanged."""
        if not self.is_published:
            return True
        try:
            named, own = os.lstat(self._path), os.fstat(self._fd)
        except OSError:
            return False
        return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino) and own.st_size == self.end

    def close(self) -> None:
        """Close the file; a file that was never published is removed."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)
        if not self.is_published:
            with suppress(OSError):
                os.unlink(temporary(self._path))


def refuse_newer(path: Path) -> None:
    """Refuse to replace a file of a newer version, which may still be used.

    Raises:
        StateRefusedError: such a file is at ``path``.
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
    """Return the path of a file until it is complete: hidden, in the same directory, one per file."""
    return path.with_name(f".{path.name}.new")

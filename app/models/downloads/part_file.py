"""A file while it is downloaded: ``NAME.part``, locked, resumable, and renamed when it is complete.

``NAME.part.json`` describes the file that the part belongs to; a part of another file is started
again. The hash is updated while writing; when a download resumes, it first reads the existing
bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from app.models.downloads.hub import RemoteFile
from app.program import exit_codes
from app.program.small_file import read_json_object, replace_file
from app.program.web_refusals import DownloadError
from app.text.clean_text import clean_line
from engine.machine.files import safe_flags, sync_directory

_READ_BYTES = 1 << 20
_MOST_NOTE_BYTES = 4096


class PartFile:
    """The open, locked part of a file; a context manager.

    Raises DownloadError: another process has it, or it is not a regular file; OSError.
    """

    def __init__(self, directory: Path, remote: RemoteFile) -> None:
        self.remote = remote
        self.final = directory / remote.name
        self.path = directory / f"{remote.name}.part"
        self._description_file = directory / f"{remote.name}.part.json"
        self.etag = ""
        """Version tag of the part, for requests that resume; "" if there is none."""
        self._hash = hashlib.sha256()
        self._fd = _open_plain(self.path)
        try:
            _lock(self._fd, remote.name)
            if not _is_still(self._fd, self.path):
                raise DownloadError(
                    f"{remote.name}: another process has just downloaded it (try again)"
                )
            self.size_bytes = os.fstat(self._fd).st_size
            self._take_up()
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> PartFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)  # the part stays

    @property
    def left_bytes(self) -> int:
        """Number of missing bytes."""
        return self.remote.size_bytes - self.size_bytes

    def hash_existing(self, progress: Callable[[int], None] | None = None) -> None:
        """Update the hash with the existing bytes."""
        os.lseek(self._fd, 0, os.SEEK_SET)
        done = 0
        while done < self.size_bytes and (
            piece := os.read(self._fd, min(_READ_BYTES, self.size_bytes - done))
        ):
            self._hash.update(piece)
            done += len(piece)
            if progress is not None:
                progress(done)

    def keep(self, n_bytes: int) -> None:
        """Keep only the first bytes."""
        os.ftruncate(self._fd, n_bytes)
        self._hash = hashlib.sha256()
        self.size_bytes = n_bytes
        self.hash_existing()

    def note_version(self, etag: str) -> None:
        """Save the version tag of the bytes on disk."""
        self.etag = etag
        description = {"sha256": self.remote.sha256, "size": self.remote.size_bytes, "etag": etag}
        replace_file(self._description_file, json.dumps(description).encode("ascii"), durable=False)

    def same_bytes(self, piece: bytes, offset: int) -> int:
        """Return how many bytes of a piece are equal to those on disk at an offset.

        Raises DownloadError: the piece is not the beginning of a model.
        """
        os.lseek(self._fd, offset, os.SEEK_SET)
        existing = os.read(self._fd, len(piece))
        if existing == piece:
            return len(piece)
        n_equal = next(
            (
                index
                for index, (existing_byte, new_byte) in enumerate(
                    zip(existing, piece, strict=False)
                )
                if existing_byte != new_byte
            ),
            len(existing),
        )
        if offset + n_equal < min(len(self.remote.magic), self.size_bytes):
            raise self._no_model(piece)
        return n_equal

    def append(self, piece: bytes) -> None:
        """Write a piece at the end.

        Raises DownloadError: it is too long, or not the beginning of a model; OSError.
        """
        if len(piece) > self.left_bytes:
            self.discard()
            raise DownloadError(
                f"{self.remote.name}: is longer than the expected {self.remote.size_bytes} bytes",
                exit_codes.BAD_DATA,
            )
        if self.size_bytes == 0 and not piece.startswith(self.remote.magic[: len(piece)]):
            self.discard()
            raise self._no_model(piece)
        os.lseek(self._fd, self.size_bytes, os.SEEK_SET)
        view = memoryview(piece)
        while view:
            view = view[os.write(self._fd, view) :]
        self._hash.update(piece)
        self.size_bytes += len(piece)

    def finish(self) -> Path:
        """Check size, hash and header, and give the file its final name.

        Raises DownloadError: a check failed; OSError: the part stays.
        """
        if (
            self.size_bytes != self.remote.size_bytes
            or self._hash.hexdigest() != self.remote.sha256
        ):
            self.discard()
            raise DownloadError((
                f"{self.remote.name}: the hash is wrong and the file was deleted (try "
                f"again)"
            ),
                                exit_codes.BAD_DATA)  # fmt: skip
        if self.final.suffix == ".gguf":
            self._check_header()
        os.fsync(self._fd)
        if os.path.lexists(self.final):
            raise DownloadError(
                f"{clean_line(str(self.final), 160)}: exists now; {self.path.name} stays"
            )
        os.rename(self.path, self.final)
        with suppress(OSError):
            self._description_file.unlink()
        with suppress(OSError):
            sync_directory(self.final.parent)
        return self.final

    def _no_model(self, piece: bytes) -> DownloadError:
        if piece.lstrip()[:1] == b"<":
            content = "a web page"
        else:
            content = "something else"
        return DownloadError(
            f"{self.remote.name}: received {content} instead of a model (perhaps a login page)",
            exit_codes.BAD_DATA,
        )

    def _check_header(self) -> None:
        from engine import read_single
        from engine.errors import EngineError, FileUnreadableError, UnsupportedQuantError

        try:
            read_single(self.path, keeps_strings=False).close()
        except UnsupportedQuantError:
            # the hash is right; opening the file will explain
            return
        except FileUnreadableError as error:
            raise DownloadError(f"{error}; the part is kept", exit_codes.UNREADABLE) from None
        except EngineError as error:
            self.discard()
            raise DownloadError(f"{error}; the file was deleted", exit_codes.BAD_DATA) from None

    def discard(self) -> None:
        """Delete the part."""
        for path in (self.path, self._description_file):
            with suppress(OSError):
                path.unlink()

    def _take_up(self) -> None:
        """Keep a part of this file; start again otherwise."""
        description = read_json_object(self._description_file, _MOST_NOTE_BYTES)
        is_same_file = (
            description.get("sha256") == self.remote.sha256
            and description.get("size") == self.remote.size_bytes
        )
        if not is_same_file or self.size_bytes > self.remote.size_bytes:
            self.keep(0)
            self.note_version("")
        else:
            etag = description.get("etag")
            if isinstance(etag, str) and etag.isprintable() and etag.isascii():
                self.etag = etag
            else:
                self.etag = ""


def part_bytes(directory: Path, remote: RemoteFile) -> int:
    """Return how many bytes of a file are on disk, without changing anything."""
    description = read_json_object(directory / f"{remote.name}.part.json", _MOST_NOTE_BYTES)
    if description.get("sha256") != remote.sha256:
        return 0
    try:
        return min(remote.size_bytes, (directory / f"{remote.name}.part").lstat().st_size)
    except OSError:
        return 0


def _open_plain(path: Path) -> int:
    if path.is_symlink():
        raise DownloadError(f"{clean_line(str(path), 160)}: is a link (remove it)")
    fd = os.open(path, safe_flags(os.O_RDWR | os.O_CREAT), 0o644)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(fd)
        raise DownloadError(
            f"{clean_line(str(path), 160)}: is not a regular file of its own (remove it)"
        )
    return fd


def _lock(fd: int, name: str) -> None:
    try:
        import fcntl
    except (
        ImportError
    ):  # Windows: opening is not exclusive there, and the hash finds content two writers spoil
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DownloadError(f"{name}: another process downloads it already") from None
    except OSError:
        return  # some network disks know no locks: as on Windows


def _is_still(fd: int, path: Path) -> bool:
    """Whether the path still names the open file; another process may have renamed it meanwhile."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False

"""A file while it is being downloaded: ``NAME.part`` next to where it will be, locked, resumed, and
renamed when sound.

``NAME.part.json`` next to it says what it is a part of; a part of anything else is begun again. The
hash runs along with the writing; of a part that is resumed it reads what is there already.
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
from engine.machine.directories import sync_directory
from engine.machine.regular_file import safe_flags

_READ_BYTES = 1 << 20
_MOST_NOTE_BYTES = 4096


class PartFile:
    """The open, locked part of one file, a context.

    Raises DownloadError: another has it, or it is no file; OSError.
    """

    def __init__(self, directory: Path, remote: RemoteFile) -> None:
        self.remote = remote
        self.final = directory / remote.name
        self.path = directory / f"{remote.name}.part"
        self._note = directory / f"{remote.name}.part.json"
        self.etag = ""
        """Of the version that the part came from, for a request that resumes; "" for none."""
        self._hash = hashlib.sha256()
        self._fd = _open_plain(self.path)
        try:
            _lock(self._fd, remote.name)
            if not _is_still(self._fd, self.path):
                raise DownloadError(
                    f"{remote.name}: another process has just downloaded it (look again)"
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
        """Bytes still to come."""
        return self.remote.size_bytes - self.size_bytes

    def hash_existing(self, progress: Callable[[int], None] | None = None) -> None:
        """Let the hash catch up with what is there already."""
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
        """Throw away what follows the first bytes."""
        os.ftruncate(self._fd, n_bytes)
        self._hash = hashlib.sha256()
        self.size_bytes = n_bytes
        self.hash_existing()

    def note_version(self, etag: str) -> None:
        """Note the version tag of the bytes on disk."""
        self.etag = etag
        note = {"sha256": self.remote.sha256, "size": self.remote.size_bytes, "etag": etag}
        replace_file(self._note, json.dumps(note).encode("ascii"), durable=False)

    def same_bytes(self, piece: bytes, offset: int) -> int:
        """Return how much of a piece's beginning is here at an offset.

        Raises DownloadError: no model begins so.
        """
        os.lseek(self._fd, offset, os.SEEK_SET)
        here = os.read(self._fd, len(piece))
        if here == piece:
            return len(piece)
        same = next(
            (at for at, (one, other) in enumerate(zip(here, piece, strict=False)) if one != other),
            len(here),
        )
        if offset + same < min(len(self.remote.magic), self.size_bytes):
            raise self._no_model(piece)
        return same

    def append(self, piece: bytes) -> None:
        """Write more.

        Raises DownloadError: it is too much, or no model begins so; OSError: it cannot be written.
        """
        if len(piece) > self.left_bytes:
            self.discard()
            raise DownloadError(f"{self.remote.name}: more came than the {self.remote.size_bytes} bytes it has",
                                exit_codes.BAD_DATA)  # fmt: skip
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
        """Check size, hash and header, and name the file.

        Raises DownloadError: a wrong one; OSError: a part stays.
        """
        if (
            self.size_bytes != self.remote.size_bytes
            or self._hash.hexdigest() != self.remote.sha256
        ):
            self.discard()
            raise DownloadError((
                f"{self.remote.name}: the hash of what came is wrong; it was thrown away (try "
                f"again)"
            ),
                                exit_codes.BAD_DATA)  # fmt: skip
        if self.final.suffix == ".gguf":
            self._check_header()
        os.fsync(self._fd)
        if os.path.lexists(self.final):
            raise DownloadError(
                f"{clean_line(str(self.final), 160)}: came to be there meanwhile; "
                f"{self.path.name} stays"
            )
        os.rename(self.path, self.final)
        with suppress(OSError):
            self._note.unlink()
        with suppress(OSError):
            sync_directory(self.final.parent)
        return self.final

    def _no_model(self, piece: bytes) -> DownloadError:
        if piece.lstrip()[:1] == b"<":
            what = "a web page"
        else:
            what = "something else"
        return DownloadError(f"{self.remote.name}: what came is {what}, not a model (a login page in between?)",
                             exit_codes.BAD_DATA)  # fmt: skip

    def _check_header(self) -> None:
        from engine import read_single
        from engine.errors import EngineError, FileUnreadableError, UnsupportedQuantError

        try:
            read_single(self.path, keeps_strings=False).close()
        except UnsupportedQuantError:
            # the hash is right: it is the file that was wanted, and opening it will say what is wrong
            return
        except FileUnreadableError as error:
            raise DownloadError(f"{error}; what came is kept", exit_codes.UNREADABLE) from None
        except EngineError as error:
            self.discard()
            raise DownloadError(f"{error}; it was thrown away", exit_codes.BAD_DATA) from None

    def discard(self) -> None:
        """Delete the part."""
        for path in (self.path, self._note):
            with suppress(OSError):
                path.unlink()

    def _take_up(self) -> None:
        """Keep a part of this very file; begin again otherwise."""
        note = read_json_object(self._note, _MOST_NOTE_BYTES)
        is_ours = (
            note.get("sha256") == self.remote.sha256 and note.get("size") == self.remote.size_bytes
        )
        if not is_ours or self.size_bytes > self.remote.size_bytes:
            self.keep(0)
            self.note_version("")
        else:
            etag = note.get("etag")
            if isinstance(etag, str) and etag.isprintable() and etag.isascii():
                self.etag = etag
            else:
                self.etag = ""


def part_bytes(directory: Path, remote: RemoteFile) -> int:
    """Return how much of a file is there already, without touching it."""
    note = read_json_object(directory / f"{remote.name}.part.json", _MOST_NOTE_BYTES)
    if note.get("sha256") != remote.sha256:
        return 0
    try:
        return min(remote.size_bytes, (directory / f"{remote.name}.part").lstat().st_size)
    except OSError:
        return 0


def _open_plain(path: Path) -> int:
    if path.is_symlink():
        raise DownloadError(
            f"{clean_line(str(path), 160)}: is a link, which is not written to (remove it)"
        )
    fd = os.open(path, safe_flags(os.O_RDWR | os.O_CREAT), 0o644)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(fd)
        raise DownloadError(
            f"{clean_line(str(path), 160)}: is no plain file of its own (remove it)"
        )
    return fd


def _lock(fd: int, name: str) -> None:
    try:
        import fcntl
    except (
        ImportError
    ):  # Windows: opening is not exclusive there, and the hash finds what two writers spoil
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DownloadError(f"{name}: another process downloads it already") from None
    except OSError:
        return  # some network disks know no locks: as on Windows


def _is_still(fd: int, path: Path) -> bool:
    """Whether the name means the open file: who waited for the lock may hold one that has its final
    name by now."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False

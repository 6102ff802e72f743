"""Model file: opened safely, mapped read-only, and watched for changes.

Handles paths, descriptors and maps; does not interpret the bytes.
"""

import errno
import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path

from engine.errors import FileUnreadableError, GGUFError, MemoryPlanError, printable
from engine.machine import address_space


class ModelFile:
    """Regular file, open and mapped for reading.

    The descriptor refers to the opened file: replacing or deleting its name does no harm.

    Attributes:
        path: Path that the file was opened with.
        shown_name: Name of the file, escaped for a one-line message.
        size_bytes: Length of the file when it was opened.
        map: Read-only map of the whole file. If the file is truncated on disk, reading the map
            is fatal: call ``changed`` first.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.shown_name = printable(self.path.name or str(self.path))
        self._fd = _open_regular(self.path, self.shown_name)
        try:
            opened = os.fstat(self._fd)
            self.size_bytes = opened.st_size
            self._identity = _identity(opened)
            self.map = _map(self._fd, self.size_bytes, self.shown_name)
        except BaseException:
            os.close(self._fd)
            raise

    def changed(self) -> bool:
        """Return whether the file was modified, truncated or lost since it was opened."""
        try:
            return _identity(os.fstat(self._fd)) != self._identity
        except OSError:
            return True

    def close(self) -> None:
        """Close the descriptor, and the map unless arrays still use it.

        Closing twice is harmless.
        """
        fd = self._fd
        self._fd = -1
        if fd >= 0:
            os.close(fd)
        with suppress(BufferError):  # an array still uses the map, which is freed together with it
            self.map.close()


def _open_regular(path: Path, name: str) -> int:
    """Open a regular file for reading without blocking; a FIFO would block."""
    flags = (
        os.O_RDONLY
        | getattr(os, "O_NONBLOCK", 0)
        | getattr(os, "O_CLOEXEC", 0)
        | getattr(os, "O_BINARY", 0)
    )
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        raise FileUnreadableError(f"{name}: no such file (check the path)") from None
    except PermissionError:
        raise FileUnreadableError(
            f"{name}: no permission to read it (check the file's mode and owner)"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileUnreadableError(f"{name}: cannot be opened: {printable(reason)}") from None
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        file_type = "a directory"
    else:
        file_type = "not a regular file"
    raise FileUnreadableError(f"{name}: is {file_type} (name a .gguf file)")


def _map(fd: int, size_bytes: int, name: str) -> mmap.mmap:
    if size_bytes == 0:
        raise GGUFError(f"{name}: is empty (download it again)")
    try:
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError, OverflowError) as error:
        limit = address_space.limit_bytes()
        if isinstance(error, OSError) and error.errno == errno.ENOMEM and limit is not None:
            raise MemoryPlanError(
                f"{name}: cannot be mapped: {address_space.blame(limit)}"
            ) from None
        reason = getattr(error, "strerror", None) or str(error)
        raise FileUnreadableError(
            f"{name}: cannot be mapped into memory: {printable(reason)}"
        ) from None


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

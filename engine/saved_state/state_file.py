"""Safe reading of segment files: own regular files only, no links."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.cache.kv_cache import Copied

_READ = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


@dataclass(frozen=True)
class SavedPiece:
    """Saved positions that may be copied into a session.

    Attributes:
        first: first position.
        last: position after the last one.
        n_bytes: size of the keys and values.
        read: fills a view of that size; returns False if the file is damaged or gone.
    """

    first: int
    last: int
    n_bytes: int
    read: Callable[[memoryview], bool]

    @property
    def copied(self) -> Copied:
        """Positions and size."""
        return self.first, self.last, self.n_bytes


@dataclass(frozen=True)
class SavedMatch:
    """Saved part of a sequence of tokens.

    Attributes:
        n: number of tokens that agree.
        pieces: pieces in the order in which they are copied.
    """

    n: int
    pieces: list[SavedPiece]


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a file for reading, without following a link or waiting; yields the descriptor.

    Raises:
        OSError: the file cannot be opened, is a link or not a regular file, or another user owns it
            or may write it.
    """
    if path.is_symlink():
        raise PermissionError(path)
    fd = os.open(path, _READ | NO_FOLLOW)
    try:
        if not is_own_file(os.fstat(fd)):
            raise PermissionError(path)
        yield fd
    finally:
        os.close(fd)


def is_own_file(status: os.stat_result) -> bool:
    """Whether a file is a regular file that only this user owns and may write."""
    is_own = not hasattr(os, "geteuid") or (
        status.st_uid == os.geteuid() and not status.st_mode & 0o022
    )
    return stat.S_ISREG(status.st_mode) and is_own


def read_into(fd: int, view: memoryview) -> bool:
    """Fill a view with the next bytes of a file; returns False if the file ends before."""
    done = 0
    with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
        while done < len(view):
            n = file.readinto(view[done:])
            if not n:
                return False
            done += n
    return True

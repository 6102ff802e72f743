"""Opens a segment's file safely (no links, own files only) and reads it; nothing is believed before
it is checked."""

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
        first, last: its positions.
        n_bytes: size of their keys and values.
        read: fills a view of that size; False where they are damaged or gone.
    """

    first: int
    last: int
    n_bytes: int
    read: Callable[[memoryview], bool]

    @property
    def copied(self) -> Copied:
        """Its positions and size."""
        return self.first, self.last, self.n_bytes


@dataclass(frozen=True)
class SavedMatch:
    """Saved part of a sequence of tokens.

    Attributes:
        n: tokens that agree.
        pieces: in the order in which they are copied.
    """

    n: int
    pieces: list[SavedPiece]


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open for reading, without following a link or waiting; yields the descriptor.

    Raises:
        OSError: it cannot be opened, or is a link, no regular file, or one that somebody else owns
            or may write.
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


def is_own_file(found: os.stat_result) -> bool:
    """Whether it is a regular file that only the user owns and may write."""
    is_own = not hasattr(os, "geteuid") or (
        found.st_uid == os.geteuid() and not found.st_mode & 0o022
    )
    return stat.S_ISREG(found.st_mode) and is_own


def read_into(fd: int, view: memoryview) -> bool:
    """Fill the view with what comes next in the file; False if the file ends before."""
    done = 0
    with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
        while done < len(view):
            n = file.readinto(view[done:])
            if not n:
                return False
            done += n
    return True

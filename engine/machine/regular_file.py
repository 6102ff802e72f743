"""Safe opening of small files.

A folder, pipe, device or socket is refused, and nothing waits.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

NOT_A_FILE = "is not a file"


def safe_flags(flags: int) -> int:
    """Return flags of ``os.open`` that also follow no link, wait for no pipe and leave bytes
    unchanged."""
    names = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY")
    return flags | sum(getattr(os, name, 0) for name in names)


def open_regular(path: Path, follows_links: bool = False) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    flags = safe_flags(os.O_RDONLY)
    if follows_links:
        flags &= ~getattr(os, "O_NOFOLLOW", 0)
    if follows_links:
        status = os.stat(path)
    else:
        status = os.lstat(path)
    _require_regular(path, status.st_mode)  # opening a device may have an effect
    handle = os.open(path, flags)
    try:
        _require_regular(path, os.fstat(handle).st_mode)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path, max_bytes: int, follows_links: bool = False) -> bytes | None:
    """Return the content of a regular file, None if it is larger.

    Raises:
        OSError: it cannot be opened or read.
    """
    with open_regular(path, follows_links) as file:
        content = file.read(max_bytes + 1)
    if len(content) <= max_bytes:
        return content
    return None


def _require_regular(path: Path, mode: int) -> None:
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "is a link, which is not followed here", str(path))
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, NOT_A_FILE, str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, NOT_A_FILE, str(path))

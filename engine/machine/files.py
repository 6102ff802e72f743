"""Private directories, and regular files that are opened safely."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_NOT_OFFERED = (errno.EINVAL, errno.ENOTSUP)
"""Errors of file systems that cannot sync directories, such as some network and FUSE ones."""


def sync_directory(path: Path) -> None:
    """Flush the names in a directory to the device, if the system supports that.

    Raises:
        OSError: The flush failed.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise
    finally:
        os.close(directory)


def make_private(path: Path) -> None:
    """Create a directory and its missing parents with mode 0700, as the XDG base directory
    specification asks.

    Existing directories keep their mode.

    Raises:
        OSError: one cannot be created.
    """
    with suppress(FileExistsError):
        try:
            path.mkdir(mode=0o700)
        except FileNotFoundError:
            make_private(path.parent)
            path.mkdir(mode=0o700)


def is_safe_for_code(path: Path) -> bool:
    """Return whether only this user and root can add files to a directory or replace it.

    Files of such a directory may be loaded as code. Modes are never changed: code that somebody
    else left there would not become safe by closing the directory afterwards.
    """
    if not hasattr(os, "geteuid"):
        return path.is_dir()
    try:
        status = path.lstat()
        if (
            not stat.S_ISDIR(status.st_mode)
            or status.st_uid != os.geteuid()
            or _others_may_write(status)
        ):
            return False
        return all(map(_keeps_names, path.resolve(strict=True).parents))
    except (OSError, RuntimeError):
        return False


def _keeps_names(directory: Path) -> bool:
    """Return whether others cannot rename our entries in a directory.

    They may not write to it, or the sticky bit stops them.
    """
    status = directory.stat()
    # The owner of the root directory is the system, whatever number a container gives it.
    is_trusted = status.st_uid in (0, os.geteuid(), Path("/").stat().st_uid)
    return is_trusted and (bool(status.st_mode & stat.S_ISVTX) or not _others_may_write(status))


def _others_may_write(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_own_group(status.st_gid)


def _is_own_group(group_id: int) -> bool:
    """Return whether this user is the group's only member.

    Many systems give each user such a group and a umask of 002.
    """
    import grp
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(group_id)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


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

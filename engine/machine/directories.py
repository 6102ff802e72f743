"""Directories: made for the user alone, safe to trust, and names that outlive a power cut."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

_NOT_OFFERED = (errno.EINVAL, errno.ENOTSUP)
"""What a file system answers that cannot sync directories, as some of networks and of user space."""


def sync_directory(path: Path) -> None:
    """Let the names in a directory outlive a power cut, where the system can promise that.

    Raises:
        OSError: that failed.
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
    """Create a directory and those missing above it, each closed to others, as XDG asks for its base directories.

    What exists keeps its mode.

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
    """Whether nobody but this user (and root) can put anything into a directory, or another one in its place.

    What is loaded from such a directory may be run. Nothing is changed: code that somebody else left there does not
    become safe by closing the directory behind them.
    """
    if not hasattr(os, "geteuid"):
        return path.is_dir()
    try:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or _others_may_write(found):
            return False
        return all(map(_keeps_names, path.resolve(strict=True).parents))
    except (OSError, RuntimeError):
        return False


def _keeps_names(directory: Path) -> bool:
    """Whether others cannot rename what is ours in there: they may not write, or the sticky bit holds them off."""
    found = directory.stat()
    # Whoever owns the root directory is the system, by whatever number a container knows it.
    is_trusted = found.st_uid in (0, os.geteuid(), Path("/").stat().st_uid)
    return is_trusted and (bool(found.st_mode & stat.S_ISVTX) or not _others_may_write(found))


def _others_may_write(found: os.stat_result) -> bool:
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found.st_gid)


def _is_own_group(group_id: int) -> bool:
    """Whether a group holds this user alone: many systems give each user a group of that name, and a umask of 002."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(group_id)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}

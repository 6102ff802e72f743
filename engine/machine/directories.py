"""Directories: private creation, a check that code in them is safe to load, and durable names."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

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

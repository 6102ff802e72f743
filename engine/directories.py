"""Names of files that outlive a power cut."""

from __future__ import annotations

import errno
import os
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

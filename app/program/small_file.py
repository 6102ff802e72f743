"""Small files of the program: read within bounds, replaced as a whole."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.program import paths
from engine.machine.directories import sync_directory


def read_bounded(path: Path, most_bytes: int) -> bytes | None:
    """Return the content; None for a file that is larger. Follows no symbolic link and waits for no pipe.

    Raises:
        OSError: it cannot be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        raw = file.read(most_bytes + 1)
    return raw if len(raw) <= most_bytes else None


def read_json_object(path: Path, most_bytes: int) -> dict[str, Any]:
    """Return the JSON object of a file that can be done without; {} if it is missing or unusable."""
    try:
        content = json.loads(read_bounded(path, most_bytes) or b"null")
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def append_file(path: Path, content: bytes) -> int:
    """Add to the end of a file, which is its owner's alone when this creates it; returns its size then.

    Raises:
        OSError: not all of it was written.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags, 0o600), "ab") as file:
        file.write(content)
        return file.tell()


def replace_file(path: Path, content: bytes, durable: bool = True) -> None:
    """Write beside the file, then rename over it: a reader finds the old content or the new.

    Args:
        durable: flush to the disk before and after, for what must outlive a power cut.

    Raises:
        OSError: the file is as it was.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # created with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    if durable:
        sync_directory(path.parent)


class JsonFile:
    """A JSON object that the program can do without: of a known version, and never written over a newer one.

    Nothing here raises.

    Args:
        path: None keeps nothing. Its directory is made when there is something to write.
        version: of what is written.
        oldest: of what can still be read.
    """

    def __init__(self, path: Path | None, version: int, most_bytes: int, oldest: int = 1) -> None:
        self._path, self._version, self._most_bytes, self._oldest = path, version, most_bytes, oldest

    def read(self) -> dict[str, Any]:
        """Return the object; {} if it is missing or unusable."""
        content = self._content()
        version = content.get("version")
        return content if type(version) is int and self._oldest <= version <= self._version else {}

    def write(self, **content: Any) -> None:
        """Replace the object, where that is possible."""
        if self._path is None or paths.private_directory(self._path.parent) is None:
            return
        version = self._content().get("version")
        if type(version) is int and version > self._version:
            return
        with suppress(OSError, ValueError):
            text = json.dumps({"version": self._version, **content})
            replace_file(self._path, text.encode("ascii"), durable=False)

    def _content(self) -> dict[str, Any]:
        return read_json_object(self._path, self._most_bytes) if self._path is not None else {}

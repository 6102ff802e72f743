"""Small files: read within bounds, replaced as a whole; JSON with a version, and TOML that a person wrote."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from app.program import exit_codes, paths
from app.program.refusals import Refusal
from app.text.clean_text import clean_line
from engine.machine.directories import sync_directory


def safe_flags(flags: int) -> int:
    """Return flags of ``os.open`` with those that follow no link, wait for no pipe and leave bytes as they are."""
    return flags | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))


def read_bounded(path: Path, most_bytes: int) -> bytes | None:
    """Return the content; None where it is larger. Follows no link, waits for no pipe. Raises OSError: unreadable."""
    with os.fdopen(os.open(path, safe_flags(os.O_RDONLY)), "rb") as file:
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
    """Add to a file, its owner's alone if this creates it; return its size. Raises OSError: not all is written."""
    with os.fdopen(os.open(path, safe_flags(os.O_WRONLY | os.O_APPEND | os.O_CREAT), 0o600), "ab") as file:
        file.write(content)
        return file.tell()


def replace_file(path: Path, content: bytes, durable: bool = True) -> None:
    """Write next to the file, then rename over it; ``durable``: for a power cut. Raises OSError: it is as it was."""
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


class DamagedFileError(ValueError):
    """A JSON file that cannot be used; the message says why."""


class NewerFileError(ValueError):
    """It was written by a newer version of the program."""


class JsonFile:
    """A small JSON object with a version, replaced as a whole and never written over one of a newer version.

    Its directory is made for its owner alone, with the first thing to write.
    """

    def __init__(self, path: Path | None, version: int, most_bytes: int) -> None:
        self._path, self._version, self._most_bytes = path, version, most_bytes

    def load(self) -> dict[str, Any]:
        """Return the object, {} where none is kept. Raises OSError, or ValueError with a reason: it cannot be used."""
        if self._path is None:
            return {}
        raw = read_bounded(self._path, self._most_bytes)
        if raw is None:
            raise DamagedFileError(f"larger than {self._most_bytes >> 10} KiB")
        try:
            content = json.loads(raw)
        except (ValueError, RecursionError):
            raise DamagedFileError("not sound JSON") from None
        version = content.get("version") if isinstance(content, dict) else None
        if type(version) is not int or version < self._version:
            raise DamagedFileError("without a version that is known")
        if version > self._version:
            raise NewerFileError("written by a newer version of the program")
        return dict(content)

    def save(self, is_durable: bool = True, **content: Any) -> None:
        """Replace the object. Raises OSError, or NewerFileError: the file is as it was."""
        if self._path is None:
            return
        if paths.private_directory(self._path.parent) is None:
            raise PermissionError(errno.EACCES, "its directory is not writable")
        with suppress(OSError, DamagedFileError):
            self.load()
        text = json.dumps({"version": self._version, **content})
        replace_file(self._path, text.encode("ascii"), is_durable)

    def read(self) -> dict[str, Any]:
        """Return an object that can be done without; {} if it is missing or unusable."""
        try:
            return self.load()
        except (OSError, ValueError):
            return {}

    def write(self, **content: Any) -> None:
        """Replace an object that can be done without, where that is possible."""
        with suppress(OSError, ValueError):
            self.save(is_durable=False, **content)


_LARGEST = 1 << 63


def checked(kind: Any, value: Any, *late: type) -> Any:
    """Return what JSON holds in its kind: a text, a count, a number, yes or no, or what holds such, as a record does.

    A record may lack what has a default, and hold more: an earlier version, or a later one, wrote it.

    Raises ValueError: it is none. ``late``: classes that a record names and does not import.
    """
    parts, is_record = get_args(kind), is_dataclass(kind)
    if type(None) in parts:
        return None if value is None else checked(parts[0], value, *late)
    if is_record and isinstance(value, dict):
        fields = _kinds_of(kind, late)
        try:
            return kind(**{name: checked(one, value[name], *late) for name, one in fields.items() if name in value})
        except TypeError as reason:
            raise ValueError(str(reason)) from None
    if get_origin(kind) is Mapping and isinstance(value, dict):
        return {name: checked(parts[1], one, *late) for name, one in value.items()}
    if get_origin(kind) is tuple and isinstance(value, list):
        kinds = [parts[0]] * len(value) if parts[-1] is ... else parts
        return tuple(checked(*pair, *late) for pair in zip(kinds, value, strict=True))
    is_count = kind is int and type(value) is int and 0 <= value < _LARGEST
    is_number = kind is float and type(value) in (int, float) and abs(value) < _LARGEST
    if is_count or is_number or (kind in (str, bool) and isinstance(value, kind)):
        return value
    raise ValueError(f"not of {kind}")


@cache
def _kinds_of(kind: Any, late: tuple[type, ...]) -> dict[str, Any]:
    """Return the kinds of a record's fields by their names."""
    return get_type_hints(kind, localns={one.__name__: one for one in late})


_MAX_FILE_BYTES = 1 << 20


def read_text(path: Path, kind: str, most_bytes: int = _MAX_FILE_BYTES, error: type[Refusal] = Refusal) -> str:
    """Return a file of this kind that a person wrote. Raises Refusal: unreadable, too large or not UTF-8."""
    shown = clean_line(str(path), 400)
    try:
        if path.exists() and not path.is_file():  # a pipe would hold up the start
            raise error(f"{shown}: is not a file (remove it or name another one)", exit_codes.UNREADABLE)
        with path.open("rb") as file:
            raw = file.read(most_bytes + 1)
    except OSError as reason:
        raise error(f"{shown}: {reason.strerror} (the {kind})", exit_codes.UNREADABLE) from reason
    if len(raw) > most_bytes:
        raise error(f"{shown}: is larger than {most_bytes >> 10} KiB, which no {kind} is", exit_codes.BAD_DATA)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as reason:
        raise error(f"{shown}: byte {reason.start} is not UTF-8 (save it so)", exit_codes.BAD_DATA) from reason


def read_toml(path: Path, kind: str, error: type[Refusal] = Refusal) -> dict[str, Any]:
    """Return the tables of a file of this kind. Raises Refusal: as ``read_text``, or it is not sound TOML."""
    return parse_toml(read_text(path, kind, error=error), str(path), error)


@cache
def bundled_table(name: str) -> dict[str, Any]:
    """Return the tables of a file of our own in ``config``."""
    return parse_toml((paths.bundled("config") / name).read_text(encoding="utf-8"), name)


def parse_toml(text: str, path: str, error: type[Refusal] = Refusal) -> dict[str, Any]:
    """Return the tables of a file's text. Raises Refusal: it is not sound TOML."""
    import tomli

    try:
        return tomli.loads(text)
    except (tomli.TOMLDecodeError, RecursionError, ValueError) as reason:
        raise error(f"{path}: is not sound TOML: {reason}", exit_codes.BAD_DATA) from reason

"""Small files: read within bounds, replaced as a whole; JSON with a version, and TOML that a person
wrote."""

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

from app.program import exit_codes, notices, paths
from app.program.refusals import Refusal
from app.text.clean_text import clean_line
from engine.machine.directories import sync_directory
from engine.machine.regular_file import read_regular, safe_flags
from engine.nesting import is_nested_deeper


def read_bounded(path: Path, most_bytes: int) -> bytes | None:
    """Return the content; None where it is larger.

    Follows no link, waits for no pipe. Raises OSError: unreadable.
    """
    return read_regular(path, most_bytes)


def read_json_object(path: Path, most_bytes: int) -> dict[str, Any]:
    """Return the JSON object of a file that can be done without; {} if it is missing or
    unusable."""
    try:
        content = json.loads(read_bounded(path, most_bytes) or b"null")
    except (OSError, ValueError, RecursionError):
        return {}
    if isinstance(content, dict):
        return content
    return {}


def append_file(path: Path, content: bytes) -> int:
    """Add to a file, its owner's alone if this creates it; return its size.

    Raises OSError: not all is written.
    """
    with os.fdopen(
        os.open(path, safe_flags(os.O_WRONLY | os.O_APPEND | os.O_CREAT), 0o600), "ab"
    ) as file:
        file.write(content)
        return file.tell()


def replace_file(path: Path, content: bytes, durable: bool = True) -> None:
    """Write next to the file, then rename over it; ``durable``: for a power cut.

    Raises OSError: it is as it was.
    """
    # created with mode 0600
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
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


class OlderFileError(DamagedFileError):
    """A file that an older version of the program wrote."""


class NewerFileError(ValueError):
    """It was written by a newer version of the program."""


class JsonFile:
    """A small JSON object with a version, replaced as a whole and never written over one of a newer
    version.

    Its directory is made for its owner alone, with the first thing to write.
    """

    def __init__(self, path: Path | None, version: int, most_bytes: int) -> None:
        self._path = path
        self._version = version
        self._most_bytes = most_bytes

    def load(self) -> dict[str, Any]:
        """Return the object, {} where none is kept.

        Raises OSError, or ValueError with a reason: it cannot be used.
        """
        if self._path is None:
            return {}
        raw = read_bounded(self._path, self._most_bytes)
        if raw is None:
            raise DamagedFileError(f"larger than {self._most_bytes >> 10} KiB")
        try:
            content = json.loads(raw)
        except (ValueError, RecursionError):
            raise DamagedFileError("not sound JSON") from None
        if isinstance(content, dict):
            version = content.get("version")
        else:
            version = None
        if type(version) is int and version < self._version:
            raise OlderFileError("written by an older version of the program")
        if type(version) is not int:
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
        except OlderFileError:
            return {}
        except (OSError, ValueError) as error:
            if self._path is not None:
                notices.add_ignored(self._path, error, "left unused")
            return {}

    def write(self, **content: Any) -> None:
        """Replace an object that can be done without, where that is possible."""
        with suppress(OSError, ValueError):
            self.save(is_durable=False, **content)


_LARGEST = 1 << 63


def checked(kind: Any, value: Any, *late: type) -> Any:
    """Return what JSON holds in its kind: a text, a count, a number, yes or no, or what holds such,
    as a record does.

    A record may lack what has a default, and hold more: an earlier version, or a later one, wrote
    it.

    Raises ValueError: it is none. ``late``: classes that a record names and does not import.
    """
    parts = get_args(kind)
    is_record = is_dataclass(kind)
    if type(None) in parts:
        if value is None:
            return None
        return checked(parts[0], value, *late)
    if is_record and isinstance(value, dict):
        fields = _kinds_of(kind, late)
        try:
            return kind(
                **{
                    name: checked(one, value[name], *late)
                    for name, one in fields.items()
                    if name in value
                }
            )
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
MOST_LEVELS = 32
"""Limit on tables and lists inside each other in a file that a person wrote."""


def read_text(
    path: Path, kind: str, most_bytes: int = _MAX_FILE_BYTES, error: type[Refusal] = Refusal
) -> str:
    """Return the text of a file of this kind that a person wrote.

    Links are followed, and a byte order mark is left out.

    Raises Refusal: it is no regular file, unreadable, too large or not UTF-8.
    """
    shown = clean_line(str(path), 400)
    try:
        raw = read_regular(path, most_bytes, follows_links=True)
    except OSError as reason:
        raise error(
            f"{shown}: {_why_unreadable(path, reason)} (the {kind})", exit_codes.UNREADABLE
        ) from reason
    except ValueError as reason:
        raise error(f"{shown!a}: is not a path (the {kind})", exit_codes.UNREADABLE) from reason
    if raw is None:
        raise error(
            f"{shown}: is larger than {most_bytes >> 10} KiB, which no {kind} is",
            exit_codes.BAD_DATA,
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        raise error(
            f"{shown}: byte {reason.start} is not UTF-8 (save it so)", exit_codes.BAD_DATA
        ) from reason


def _why_unreadable(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and os.path.islink(path):
        return "is a link that leads nowhere; remove it or mend it"
    if error.errno == errno.ELOOP:
        return "is a link that leads back to itself; remove it or mend it"
    if error.errno in (errno.EINVAL, errno.EISDIR):
        return f"{error.strerror}; remove it or name another one"
    if isinstance(error, NotADirectoryError):
        return f"{_file_above(path)} is a file where a folder must be; move it away"
    return error.strerror or "cannot be read"


def _file_above(path: Path) -> str:
    """Return which of the folders above a path is a file."""
    return next(
        (clean_line(str(parent), 200) for parent in path.parents if parent.is_file()),
        "a part of the path",
    )


def is_present(path: Path | None) -> bool:
    """Whether a path's name is taken.

    A link that leads nowhere counts, and so does a name behind a closed folder.
    """
    if path is None:
        return False
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    return True


def read_toml(path: Path, kind: str, error: type[Refusal] = Refusal) -> dict[str, Any]:
    """Return the tables of a file of this kind.

    Raises Refusal: as ``read_text``, or it is not sound TOML.
    """
    return parse_toml(read_text(path, kind, error=error), str(path), error)


@cache
def bundled_table(name: str) -> dict[str, Any]:
    """Return the tables of a file of our own in ``config``."""
    return parse_toml((paths.bundled("config") / name).read_text(encoding="utf-8"), name)


def parse_toml(text: str, path: str, error: type[Refusal] = Refusal) -> dict[str, Any]:
    """Return the tables of a file's text.

    Raises:
        Refusal: it is not sound TOML, or nested too deep.
    """
    import tomli

    shown = clean_line(path, 400)
    try:
        tables = tomli.loads(text)
    except RecursionError as reason:
        raise error(f"{shown}: {_TOO_DEEP}", exit_codes.BAD_DATA) from reason
    except (tomli.TOMLDecodeError, ValueError) as reason:
        why = clean_line(str(reason), 200)
        raise error(f"{shown}: is not sound TOML: {why}", exit_codes.BAD_DATA) from reason
    if is_nested_deeper(tables, MOST_LEVELS):
        raise error(f"{shown}: {_TOO_DEEP}", exit_codes.BAD_DATA)
    return tables


_TOO_DEEP = f"holds tables or lists more than {MOST_LEVELS} deep (write it anew)"

"""Small files: bounded reading, atomic replacement, versioned JSON, and TOML written by people."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from app.program import exit_codes, notices, paths
from app.program.refusals import Refusal
from app.text.clean_text import clean_line
from engine.machine.files import read_regular, safe_flags, sync_directory
from engine.nesting import is_nested_deeper


def read_bounded(path: Path, most_bytes: int) -> bytes | None:
    """Return the content of a file; None if it is larger than the limit.

    Links are not followed and pipes not waited for. Raises OSError.
    """
    return read_regular(path, most_bytes)


def read_json_object(path: Path, most_bytes: int) -> dict[str, Any]:
    """Return the JSON object of an optional file; empty if the file is missing or unusable."""
    try:
        content = json.loads(read_bounded(path, most_bytes) or b"null")
    except (OSError, ValueError, RecursionError):
        return {}
    if isinstance(content, dict):
        return content
    return {}


def append_file(path: Path, content: bytes) -> int:
    """Append to a file and return its size. A new file is readable only by its owner.

    Raises OSError: not everything is written.
    """
    with os.fdopen(
        os.open(path, safe_flags(os.O_WRONLY | os.O_APPEND | os.O_CREAT), 0o600), "ab"
    ) as file:
        file.write(content)
        return file.tell()


def replace_file(path: Path, content: bytes, durable: bool = True) -> None:
    """Replace a file by writing a new one next to it and renaming it.

    Args:
        durable: whether the new content must survive a power cut.

    Raises OSError: the file is unchanged.
    """
    # mkstemp uses mode 0600
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


_LOCK_S = 1.0
_LOCK_PERIOD_S = 0.005
"""Longest wait for another process that changes a file, and the pauses between two attempts."""


class DamagedFileError(ValueError):
    """A JSON file cannot be used; the message says why."""


class OlderFileError(DamagedFileError):
    """The file was written by an older version of the program."""


class NewerFileError(ValueError):
    """The file was written by a newer version of the program."""


class JsonFile:
    """A small JSON object with a version.

    It is replaced as a whole, and never if a newer version wrote it. Its directory is created
    private when something is saved.
    """

    def __init__(self, path: Path | None, version: int, most_bytes: int) -> None:
        self._path = path
        self._version = version
        self._most_bytes = most_bytes

    def load(self) -> dict[str, Any]:
        """Return the object; empty if there is no path.

        Raises OSError, or ValueError with a reason: the file cannot be used.
        """
        if self._path is None:
            return {}
        raw = read_bounded(self._path, self._most_bytes)
        if raw is None:
            raise DamagedFileError(f"larger than {self._most_bytes >> 10} KiB")
        try:
            content = json.loads(raw)
        except (ValueError, RecursionError):
            raise DamagedFileError("not valid JSON") from None
        if isinstance(content, dict):
            version = content.get("version")
        else:
            version = None
        if type(version) is int and version < self._version:
            raise OlderFileError("written by an older version of the program")
        if type(version) is not int:
            raise DamagedFileError("without a known version")
        if version > self._version:
            raise NewerFileError("written by a newer version of the program")
        return dict(content)

    def save(self, is_durable: bool = True, **content: Any) -> None:
        """Replace the object. Raises OSError or NewerFileError: the file is unchanged."""
        if self._path is None:
            return
        if paths.private_directory(self._path.parent) is None:
            raise PermissionError(errno.EACCES, "its directory is not writable")
        with suppress(OSError, DamagedFileError):
            self.load()
        text = json.dumps({"version": self._version, **content})
        replace_file(self._path, text.encode("ascii"), is_durable)

    def read(self) -> dict[str, Any]:
        """Return an optional object; empty if it is missing or unusable."""
        try:
            return self.load()
        except OlderFileError:
            return {}
        except (OSError, ValueError) as error:
            if self._path is not None:
                notices.add_ignored(self._path, error, "it is ignored")
            return {}

    def read_or_put_aside(self) -> dict[str, Any]:
        """Return an optional object as ``read``; a damaged file is renamed, with a line."""
        try:
            return self.load()
        except OlderFileError:
            return {}
        except DamagedFileError as error:
            self._put_aside(error)
            return {}
        except (OSError, ValueError):
            return self.read()

    def _put_aside(self, error: DamagedFileError) -> None:
        assert self._path is not None
        aside = self._path.with_name(f"{self._path.stem}-damaged{self._path.suffix}")
        try:
            os.replace(self._path, aside)
            consequence = f"moved to {aside.name}, a new file begins"
        except OSError:
            consequence = "it is ignored"
        notices.add_ignored(self._path, error, consequence)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process change the file during the block, if the system has locks.

        Another process is waited for only briefly: a lost change beats a program that hangs.
        """
        handle = None
        with suppress(OSError):
            if self._path is not None:
                handle = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            give_up_s = time.monotonic() + _LOCK_S
            while handle is not None and not _locks(handle) and time.monotonic() < give_up_s:
                time.sleep(_LOCK_PERIOD_S)
            yield
        finally:
            if handle is not None:
                os.close(handle)

    def write(self, **content: Any) -> None:
        """Replace an optional object if possible."""
        with suppress(OSError, ValueError):
            self.save(is_durable=False, **content)


def _locks(handle: int) -> bool:
    """Lock a file; return False if another process has the lock."""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        return True
    return True


_LARGEST = 1 << 63


def checked(value_type: Any, value: Any, *late: type) -> Any:
    """Return a JSON value as its type: text, count, number, boolean, or records and lists of these.

    Records may lack fields with defaults and may have unknown fields, from other versions.

    Args:
        late: classes that a record names without importing them.

    Raises ValueError: the value has another type.
    """
    type_arguments = get_args(value_type)
    is_record = is_dataclass(value_type)
    if type(None) in type_arguments:
        if value is None:
            return None
        return checked(type_arguments[0], value, *late)
    if is_record and isinstance(value, dict):
        fields = _types_of(value_type, late)
        try:
            return value_type(
                **{
                    name: checked(item, value[name], *late)
                    for name, item in fields.items()
                    if name in value
                }
            )
        except TypeError as reason:
            raise ValueError(str(reason)) from None
    if get_origin(value_type) is Mapping and isinstance(value, dict):
        return {name: checked(type_arguments[1], item, *late) for name, item in value.items()}
    if get_origin(value_type) is tuple and isinstance(value, list):
        item_types = (
            [type_arguments[0]] * len(value) if type_arguments[-1] is ... else type_arguments
        )
        return tuple(checked(*pair, *late) for pair in zip(item_types, value, strict=True))
    is_count = value_type is int and type(value) is int and 0 <= value < _LARGEST
    is_number = value_type is float and type(value) in (int, float) and abs(value) < _LARGEST
    if is_count or is_number or (value_type in (str, bool) and isinstance(value, value_type)):
        return value
    raise ValueError(f"not of {value_type}")


@cache
def _types_of(record_type: Any, late: tuple[type, ...]) -> dict[str, Any]:
    """Return the types of a record's fields by name."""
    return get_type_hints(
        record_type, localns={late_class.__name__: late_class for late_class in late}
    )


_MAX_FILE_BYTES = 1 << 20
MOST_LEVELS = 32
"""Limit on nested tables and lists in files written by people."""


def read_text(
    path: Path, description: str, most_bytes: int = _MAX_FILE_BYTES, error: type[Refusal] = Refusal
) -> str:
    """Return the text of a file written by a person, without a byte order mark. Links are followed.

    Args:
        description: what the file is, for error lines.

    Raises Refusal: it is not a regular file, unreadable, too large or not UTF-8.
    """
    name = clean_line(str(path), 400)
    try:
        raw = read_regular(path, most_bytes, follows_links=True)
    except OSError as reason:
        raise error(
            f"{name}: {_why_unreadable(path, reason)} (the {description})", exit_codes.UNREADABLE
        ) from reason
    except ValueError as reason:
        raise error(
            f"{name!a}: is not a path (the {description})", exit_codes.UNREADABLE
        ) from reason
    if raw is None:
        raise error(
            f"{name}: is too large for a {description} (limit: {most_bytes >> 10} KiB)",
            exit_codes.BAD_DATA,
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        raise error(
            f"{name}: byte {reason.start} is not UTF-8 (save the file as UTF-8)",
            exit_codes.BAD_DATA,
        ) from reason


def _why_unreadable(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and os.path.islink(path):
        return "is a broken link (remove or correct it)"
    if error.errno == errno.ELOOP:
        return "is a link to itself (remove or correct it)"
    if error.errno in (errno.EINVAL, errno.EISDIR):
        return f"{error.strerror} (remove it or name another file)"
    if isinstance(error, NotADirectoryError):
        return f"{_file_above(path)} is a file, but should be a folder (move it away)"
    return error.strerror or "cannot be read"


def _file_above(path: Path) -> str:
    """Return the parent of a path that is a file instead of a folder."""
    return next(
        (clean_line(str(parent), 200) for parent in path.parents if parent.is_file()),
        "a part of the path",
    )


def is_present(path: Path | None) -> bool:
    """Whether a path exists. A broken link counts, and so does a name in a closed folder."""
    if path is None:
        return False
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    return True


def read_toml(path: Path, description: str, error: type[Refusal] = Refusal) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises Refusal: as ``read_text``, or the TOML is not valid.
    """
    return parse_toml(read_text(path, description, error=error), str(path), error)


@cache
def bundled_table(name: str) -> dict[str, Any]:
    """Return the tables of a file in this program's ``config``."""
    return parse_toml((paths.bundled("config") / name).read_text(encoding="utf-8"), name)


def parse_toml(text: str, path: str, error: type[Refusal] = Refusal) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        Refusal: the TOML is not valid, or nested too deeply.
    """
    import tomli

    name = clean_line(path, 400)
    try:
        tables = tomli.loads(text)
    except RecursionError as reason:
        raise error(f"{name}: {_TOO_DEEP}", exit_codes.BAD_DATA) from reason
    except (tomli.TOMLDecodeError, ValueError) as reason:
        reason_text = clean_line(str(reason), 200)
        raise error(f"{name}: is not valid TOML: {reason_text}", exit_codes.BAD_DATA) from reason
    if is_nested_deeper(tables, MOST_LEVELS):
        raise error(f"{name}: {_TOO_DEEP}", exit_codes.BAD_DATA)
    return tables


_TOO_DEEP = f"has tables or lists nested more than {MOST_LEVELS} deep (write it again)"

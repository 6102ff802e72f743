"""JSON files of a model's directory: bounded, and read as what they should be."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.errors import ConversionError, shown
from engine.machine.regular_file import read_regular

MAX_JSON_BYTES = 128 << 20
"""A vocabulary of 260,000 tokens with its merges takes 33 MB."""


def read_bytes(path: Path, most_bytes: int = MAX_JSON_BYTES) -> bytes | None:
    """Return a small file's content; None if there is no such file.

    Raises:
        ConversionError: it cannot be read, or is larger than it may be.
    """
    try:
        if not path.is_file():
            return None
        content = read_regular(path, most_bytes, follows_links=True)
    except OSError as error:
        raise ConversionError(f"{shown(path.name)}: cannot be read: {error.strerror}") from None
    if content is None:
        raise ConversionError(f"{shown(path.name)}: is larger than {most_bytes >> 20} MiB, too large for what it is")
    return content


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if there is no such file.

    Raises:
        ConversionError: it cannot be read, or holds something else.
    """
    content = read_bytes(path)
    return None if content is None else parse_object(content, path.name)


def parse_object(content: bytes, name: str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Return the object that a text in JSON is.

    Args:
        pairs: makes each object of its pairs; None for a dict.

    Raises:
        ConversionError: it is none.
    """
    try:
        found = json.loads(content, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        raise ConversionError(f"{shown(name)}: is not JSON (damaged? get the file again)") from None
    if not isinstance(found, dict):
        raise ConversionError(f"{shown(name)}: is not an object in JSON (get the file again)")
    return found


class JsonObject:
    """Typed access to an object in a JSON file.

    Args:
        name: of the file, which begins each message.
    """

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values, self.name = values, name

    def fail(self, problem: str) -> ConversionError:
        """Make the exception for a problem."""
        return ConversionError(f"{self.name}: {problem}")

    def get(self, names: str) -> Any:
        """Return the first value that is not null, under names with "|" between them; None for none."""
        return next((self.values[name] for name in names.split("|") if self.values.get(name) is not None), None)

    def integer(self, names: str, default: int | None = None) -> int:
        """Return a whole number from 0 on; ConversionError where it is something else, or missing without default."""
        value = self._present(names, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
            raise self.fail(f"{names.split('|')[0]} is {shown(str(value))}: must be a whole number below 2^31")
        return value

    def number(self, names: str, default: float | None = None) -> float:
        """Return a finite number; raises as ``integer`` does."""
        value = self._present(names, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_float32(value):
            raise self.fail(f"{names.split('|')[0]} is {shown(str(value))}: must be a number that float32 can hold")
        return float(value)

    def flag(self, names: str, default: bool) -> bool:
        """Return a bool."""
        value = self._present(names, default)
        if not isinstance(value, bool):
            raise self.fail(f"{names.split('|')[0]} is {shown(str(value))}: must be true or false")
        return value

    def word(self, names: str, default: str = "") -> str:
        """Return a text."""
        value = self._present(names, default)
        if not isinstance(value, str):
            raise self.fail(f"{names.split('|')[0]} is {shown(str(value))}: must be a text")
        return value

    def numbers(self, name: str, count: int) -> list[float]:
        """Return a list of as many finite numbers."""
        value = self.get(name)
        is_list = isinstance(value, list) and len(value) == count
        if not is_list or not all(type(one) in (int, float) and _is_float32(one) for one in value):
            raise self.fail(f"{name} must be {count} numbers")
        return [float(one) for one in value]

    def under(self, name: str) -> JsonObject:
        """Return the object under a name; an empty one where there is none."""
        value = self.get(name)
        return JsonObject(value if isinstance(value, dict) else {}, self.name)

    def _present(self, names: str, default: Any) -> Any:
        value = self.get(names)
        if value is None and default is None:
            raise self.fail(f"{names.split('|')[0]} is missing")
        return default if value is None else value


def _is_float32(value: float) -> bool:
    return -3.4e38 < value < 3.4e38

"""JSON files of a model's directory: bounded in bytes, values and depth, read as they should be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from engine.convert.ranges import REAL, WHOLE
from engine.errors import ConversionError, shown
from engine.gguf.magic import START_BYTES, other_format
from engine.machine.regular_file import read_regular
from engine.nesting import is_nested_deeper

MAX_JSON_BYTES = 128 << 20
"""A vocabulary of 260,000 tokens with its merges takes 33 MB."""
MAX_SETTINGS_BYTES = 16 << 20
"""Limit on files without a vocabulary; the largest have the tokens that were added to one."""
MAX_VALUES = 1 << 23
"""Limit on the values in a file: a vocabulary of 260,000 tokens with its merges has two million."""
MAX_DEPTH = 64


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
        raise ConversionError(
            f"{shown(path.name)}: is larger than {most_bytes >> 20} MiB, too large for what it is"
        )
    return content


def read_object(path: Path, most_bytes: int = MAX_SETTINGS_BYTES) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if there is no such file.

    Raises:
        ConversionError: it cannot be read, is too large, or holds something else.
    """
    content = read_bytes(path, most_bytes)
    if content is None:
        return None
    settings: dict[str, Any] = parse_object(content, path.name)
    return settings


def parse_object(
    content: bytes, name: str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Return the object that a text in JSON is.

    Args:
        pairs: makes each object of its pairs; None for a dict.

    Raises:
        ConversionError: it is none, or has too many or too deeply nested values.
    """
    value = parse_json(content, name, pairs)
    if not isinstance(value, dict):
        raise ConversionError(f"{shown(name)}: is not an object in JSON (get the file again)")
    return value


def parse_json(
    content: bytes, name: str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Return the value that a text in JSON is; arguments and errors as of ``parse_object``."""
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ConversionError(
            f"{shown(name)}: has more than {MAX_VALUES} values, too many for what it is"
        )
    try:
        value = json.loads(content, object_pairs_hook=pairs)
        is_deep = is_nested_deeper(value, MAX_DEPTH + 1)
    except RecursionError:
        is_deep = True
    except ValueError:
        reason = other_format(content[:START_BYTES]) or "is not JSON (damaged? get the file again)"
        raise ConversionError(f"{shown(name)}: {reason}") from None
    if is_deep:
        raise ConversionError(
            f"{shown(name)}: is nested more than {MAX_DEPTH} deep (damaged? get the file again)"
        )
    return value


class JsonObject:
    """Typed access to an object in a JSON file; numbers must be in ``engine.convert.ranges``.

    Args:
        name: of the file, which begins each message.
        place: name of the object in the file with a dot after it, "" for the whole.
    """

    def __init__(self, values: Mapping[str, Any], name: str, place: str = "") -> None:
        self.values = values
        self.name = name
        self._place = place

    def fail(self, problem: str) -> ConversionError:
        """Make the exception for a problem."""
        return ConversionError(f"{self.name}: {problem}")

    def fail_value(self, names: str, wanted: str) -> ConversionError:
        """Make the exception for a value that is not what it must be."""
        key = shown(f"{self._place}{names.split('|')[0]}")
        return self.fail(
            f"{key} is {shown_value(self.get(names))}: must be {wanted} (get the file again)"
        )

    def get(self, names: str) -> Any:
        """Return the first value that is not null, under names with "|" between them; None for
        none."""
        return next(
            (self.values[name] for name in names.split("|") if self.values.get(name) is not None),
            None,
        )

    def integer(self, names: str, default: int | None = None) -> int:
        """Return a whole number.

        Raises:
            ConversionError: it is out of range, something else, or missing without default.
        """
        least, most = WHOLE[names.split("|")[0]]
        value = self._present(names, default)
        if type(value) is not int or (value is not default and not least <= value <= most):
            raise self.fail_value(names, f"a whole number from {least:g} to {most:.0f}")
        return value

    def number(self, names: str, default: float | None = None) -> float:
        """Return a finite number; raises as ``integer`` does."""
        value = self._present(names, default)
        if value is not default and not _is_in_range(names, value):
            least, most = REAL[names.split("|")[0]]
            raise self.fail_value(names, f"a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, names: str, default: bool) -> bool:
        """Return a bool."""
        value = self._present(names, default)
        if not isinstance(value, bool):
            raise self.fail_value(names, "true or false")
        return value

    def word(self, names: str, default: str = "") -> str:
        """Return a text."""
        value = self._present(names, default)
        if not isinstance(value, str):
            raise self.fail_value(names, "a text")
        return value

    def numbers(self, name: str, count: int) -> list[float]:
        """Return a list of as many finite numbers."""
        value = self.get(name)
        if not (
            isinstance(value, list)
            and len(value) == count
            and all(_is_in_range(name, one) for one in value)
        ):
            least, most = REAL[name]
            raise self.fail_value(name, f"{count} numbers from {least:g} to {most:g}")
        return [float(one) for one in value]

    def ids(self, name: str) -> list[int]:
        """Return the ids of tokens under a name, of one or of several; they may be of no token."""
        value = self.get(name)
        if isinstance(value, list):
            listed = value
        elif value is None:
            listed = []
        else:
            listed = [value]
        if not all(type(one) is int for one in listed):
            raise self.fail_value(name, "a token's id, or a list of them")
        return listed

    def under(self, name: str) -> JsonObject:
        """Return the object under a name; an empty one where there is none."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.fail_value(name, "an object")
        return JsonObject(value or {}, self.name, f"{self._place}{name}.")

    def objects(self, name: str) -> list[JsonObject]:
        """Return the objects in the list under a name; none where there is no list."""
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.fail_value(name, "a list of objects")
        return [JsonObject(item, self.name, f"{self._place}{name}.") for item in value]

    def check_texts(self, name: str, texts: Iterable[str]) -> None:
        """Raise ConversionError if one of the texts under a name has half of a surrogate pair."""
        if not is_utf8("".join(texts)):
            key = f"{self._place}{name}"
            raise self.fail(
                f"{key} has half of a surrogate pair, which is no character (get the file again)"
            )

    def _present(self, names: str, default: Any) -> Any:
        value = self.get(names)
        if value is None and default is None:
            raise self.fail(f"{self._place}{names.split('|')[0]} is missing")
        if value is None:
            return default
        return value


def is_utf8(text: str) -> bool:
    """Whether a text can be written as UTF-8.

    Halves of surrogate pairs, which JSON may have, cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_value(value: Any) -> str:
    """Return a value for a message: cut if it is long, of lists and objects only their kind."""
    if isinstance(value, (list, dict)):
        if isinstance(value, list):
            return "a list"
        return "an object"
    return shown(str(value))


def _is_in_range(names: str, value: Any) -> bool:
    least, most = REAL[names.split("|")[0]]
    return type(value) in (int, float) and least <= value <= most

"""JSON files of a model's directory: typed values, bounded in bytes, number and depth."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from engine.convert.ranges import REAL, WHOLE
from engine.errors import ConversionError, printable
from engine.gguf.magic import START_BYTES, other_format
from engine.machine.files import read_regular
from engine.nesting import is_nested_deeper

MAX_JSON_BYTES = 128 << 20
"""Limit on the size of a file: a vocabulary of 260,000 tokens with its merges has 33 MB."""
MAX_SETTINGS_BYTES = 16 << 20
"""Limit on files without a vocabulary; the largest of them contain added tokens."""
MAX_VALUES = 1 << 23
"""Limit on the number of values in a file; a vocabulary of 260,000 tokens with its merges has two
million."""
MAX_DEPTH = 64


def read_bytes(path: Path, most_bytes: int = MAX_JSON_BYTES) -> bytes | None:
    """Return the content of a small file; None if there is no such file.

    Raises:
        ConversionError: The file cannot be read, or is too large.
    """
    try:
        if not path.is_file():
            return None
        content = read_regular(path, most_bytes, follows_links=True)
    except OSError as error:
        raise ConversionError(f"{printable(path.name)}: cannot be read: {error.strerror}") from None
    if content is None:
        raise ConversionError(
            f"{printable(path.name)}: is larger than {most_bytes >> 20} MiB, too large for "
            f"what it is"
        )
    return content


def read_object(path: Path, most_bytes: int = MAX_SETTINGS_BYTES) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if there is no such file.

    Raises:
        ConversionError: The file cannot be read, is too large, or contains no object.
    """
    content = read_bytes(path, most_bytes)
    if content is None:
        return None
    settings: dict[str, Any] = parse_object(content, path.name)
    return settings


def parse_object(
    content: bytes, name: str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Parse a JSON text that is an object.

    Args:
        pairs: Function that returns an object, given its pairs; None for a dict.

    Raises:
        ConversionError: The text is no object, or has too many or too deeply nested values.
    """
    value = parse_json(content, name, pairs)
    if not isinstance(value, dict):
        raise ConversionError(f"{printable(name)}: is not an object in JSON (get the file again)")
    return value


def parse_json(
    content: bytes, name: str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Parse a JSON text; arguments and errors are those of ``parse_object``."""
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ConversionError(
            f"{printable(name)}: has more than {MAX_VALUES} values, too many for what it is"
        )
    try:
        value = json.loads(content, object_pairs_hook=pairs)
        is_deep = is_nested_deeper(value, MAX_DEPTH + 1)
    except RecursionError:
        is_deep = True
    except ValueError:
        reason = other_format(content[:START_BYTES]) or "is not JSON (damaged? get the file again)"
        raise ConversionError(f"{printable(name)}: {reason}") from None
    if is_deep:
        raise ConversionError(
            f"{printable(name)}: is nested more than {MAX_DEPTH} deep (damaged? get the file again)"
        )
    return value


class JsonObject:
    """Typed access to an object in a JSON file; numbers must be in ``engine.convert.ranges``.

    Args:
        name: Name of the file, which begins each message.
        place: Path of the object in the file with a dot at the end; "" for the whole file.
    """

    def __init__(self, values: Mapping[str, Any], name: str, path: str = "") -> None:
        self.values = values
        self.name = name
        self._path = path

    def fail(self, problem: str) -> ConversionError:
        """Return the exception for a problem."""
        return ConversionError(f"{self.name}: {problem}")

    def fail_value(self, names: str, expected: str) -> ConversionError:
        """Return the exception for a value that is not as expected."""
        key = printable(f"{self._path}{names.split('|')[0]}")
        return self.fail(
            f"{key} is {shown_value(self.get(names))}: must be {expected} (get the file again)"
        )

    def get(self, names: str) -> Any:
        """Return the first value that is not null; names are separated by "|".

        Return None if all are null or missing.
        """
        return next(
            (self.values[name] for name in names.split("|") if self.values.get(name) is not None),
            None,
        )

    def integer(self, names: str, default: int | None = None) -> int:
        """Return an integer.

        Raises:
            ConversionError: The value is out of range, no integer, or missing without a default.
        """
        least, most = WHOLE[names.split("|")[0]]
        value = self._present(names, default)
        if type(value) is not int or (value is not default and not least <= value <= most):
            raise self.fail_value(names, f"a whole number from {least:g} to {most:.0f}")
        return value

    def number(self, names: str, default: float | None = None) -> float:
        """Return a finite number; errors are those of ``integer``."""
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
        """Return a list of ``count`` finite numbers."""
        value = self.get(name)
        if not (
            isinstance(value, list)
            and len(value) == count
            and all(_is_in_range(name, number) for number in value)
        ):
            least, most = REAL[name]
            raise self.fail_value(name, f"{count} numbers from {least:g} to {most:g}")
        return [float(number) for number in value]

    def ids(self, name: str) -> list[int]:
        """Return the token id or ids under a name; tokens with these ids may not exist."""
        value = self.get(name)
        if isinstance(value, list):
            token_ids = value
        elif value is None:
            token_ids = []
        else:
            token_ids = [value]
        if not all(type(token_id) is int for token_id in token_ids):
            raise self.fail_value(name, "a token's id, or a list of them")
        return token_ids

    def under(self, name: str) -> JsonObject:
        """Return the object under a name; an empty object if there is none."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.fail_value(name, "an object")
        return JsonObject(value or {}, self.name, f"{self._path}{name}.")

    def objects(self, name: str) -> list[JsonObject]:
        """Return the list of objects under a name; an empty list if there is none."""
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.fail_value(name, "a list of objects")
        return [JsonObject(item, self.name, f"{self._path}{name}.") for item in value]

    def check_texts(self, name: str, texts: Iterable[str]) -> None:
        """Raise ConversionError if a text under a name has an unpaired surrogate."""
        if not is_utf8("".join(texts)):
            key = f"{self._path}{name}"
            raise self.fail(
                f"{key} has half of a surrogate pair, which is no character (get the file again)"
            )

    def _present(self, names: str, default: Any) -> Any:
        value = self.get(names)
        if value is None and default is None:
            raise self.fail(f"{self._path}{names.split('|')[0]} is missing")
        if value is None:
            return default
        return value


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8; unpaired surrogates of JSON cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_value(value: Any) -> str:
    """Return a value for a message: truncated if it is long, only the type for lists and
    objects."""
    if isinstance(value, (list, dict)):
        if isinstance(value, list):
            return "a list"
        return "an object"
    return printable(str(value))


def _is_in_range(names: str, value: Any) -> bool:
    least, most = REAL[names.split("|")[0]]
    return type(value) in (int, float) and least <= value <= most

"""Fields of the JSON objects in a request, read one by one with types and limits.

A field that is null counts as absent, as clients of the API expect. Fields that are never read are
ignored and collected: clients, gateways and other servers often add their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from app.server.api_error import ApiError, invalid
from app.server.request_pictures import RequestPictures
from app.text.clean_text import clean_line

T = TypeVar("T")

MAX_DIGITS = 400
"""Limit on the digits of a number; JavaScript's largest has 309."""
MAX_IGNORED = 100
"""Limit on the ignored fields that are collected from one request."""
MAX_PATH_CHARS = 80
"""Limit on the path of an ignored field."""
_BOM = "\ufeff"
_WRAPPERS = ("extra_body", "nvext")
"""Objects with additional fields: OpenAI's client may send the first one unchanged, NVIDIA's
servers use the other."""
_SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of characters, which programs produce when they cut a text within a character."""
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
_INDEX = re.compile(r"\[\d+\]")


def read_json(body: bytes, pictures: RequestPictures | None = None) -> Fields:
    """Return the fields of the JSON object in the body of a request.

    Args:
        body: The body.
        pictures: As in ``Fields``.

    Raises:
        ApiError: The body is not a JSON object.
    """
    # A function for integers costs a call per number, so it is used only if it is needed.
    parse_int = _limited_int if _has_long_number(body) else None
    try:
        value = json.loads(
            body.decode("utf-8").removeprefix(_BOM),
            parse_constant=_refuse_constant,
            parse_int=parse_int,
        )
    except UnicodeDecodeError:
        raise ApiError("the body is not UTF-8", code="invalid_json") from None
    except RecursionError:
        raise ApiError("the body is nested too deeply", code="invalid_json") from None
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(f"the body is {describe(value)}: must be an object", code="invalid_type")
    return Fields(value, pictures=pictures)


def _has_long_number(body: bytes) -> bool:
    """Whether the body has more digits in a row than a number may have, even inside a string."""
    return b"0" * (MAX_DIGITS + 1) in body.translate(_DIGITS_TO_ZERO)


class Fields:
    """Fields of one JSON object.

    Args:
        values: The object.
        object_path: Path of the object in the request; "" for the request itself.
        ignored: Collection for ignored fields that all objects of a request share; None for a new
            one.
        pictures: Limits of the pictures, which all objects of a request share; None for the usual
            ones without a folder.

    Attributes:
        read_names: Names of the fields that were read.
        ignored: Paths of ignored fields without the indexes of lists, as in ``messages[].name``.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        object_path: str = "",
        ignored: set[str] | None = None,
        pictures: RequestPictures | None = None,
    ) -> None:
        self._values = values
        self.object_path = object_path
        self.read_names: set[str] = set()
        self.ignored: set[str] = set() if ignored is None else ignored
        self.pictures = RequestPictures() if pictures is None else pictures

    def array_item(self, value: Any, path: str) -> Fields:
        """Return the fields of an object in a list.

        Args:
            value: The item.
            path: Path of the item in the request.

        Raises:
            ApiError: The item is not an object.
        """
        if not isinstance(value, dict):
            raise ApiError(
                f"{path} is {describe(value)}: must be an object", param=path, code="invalid_type"
            )
        return Fields(value, path, self.ignored, self.pictures)

    def unwrapped(self) -> Fields:
        """Return the fields together with those of ``extra_body`` and the like, into which clients
        put fields that OpenAI's API does not have."""
        values = dict(self._values)
        for name in _WRAPPERS:
            if isinstance(values.get(name), dict):
                values = {**values.pop(name), **values}
        return Fields(values, self.object_path, self.ignored, self.pictures)

    def path(self, name: str) -> str:
        """Return the path of a field in the request, such as ``messages[2].content``."""
        if self.object_path:
            return f"{self.object_path}.{name}"
        return name

    def mark_read(self, name: str) -> None:
        """Count a field as known, so that it is not reported as ignored."""
        self.read_names.add(name)

    def value(self, name: str) -> Any:
        """Return a field of any type and count it as known; None if it is absent."""
        self.read_names.add(name)
        return self._values.get(name)

    def has(self, name: str) -> bool:
        """Whether the field has a value."""
        return self.value(name) is not None

    def is_present(self, name: str) -> bool:
        """Whether the field exists, even with the value null."""
        self.read_names.add(name)
        return name in self._values

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return a string."""
        value = self._checked(name, str, "a string of valid characters", is_valid_text)
        if value is None:
            return default
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self._checked(name, bool, "true or false")
        if value is None:
            return default
        return value

    def number(self, name: str, lowest: float, highest: float) -> float | None:
        """Return a number within limits."""
        number_type = int if type(self._values.get(name)) is int else float
        value = self._checked(
            name,
            number_type,
            f"a number from {lowest:g} to {highest:g}",
            lambda number: lowest <= number <= highest,
        )
        if value is None:
            return None
        return float(value)

    def integer(self, name: str, lowest: int, highest: int) -> int | None:
        """Return an integer within limits; 4.0 counts as 4."""
        value = as_integer(self.value(name))
        if value is not None and not (type(value) is int and lowest <= value <= highest):
            raise self.wrong_value(name, f"an integer from {lowest} to {highest}")
        return value

    def choice(self, name: str, *words: str) -> str | None:
        """Return one of the words."""
        return self._checked(name, str, f"one of {', '.join(words)}", lambda word: word in words)

    def nested(self, name: str) -> Fields | None:
        """Return the fields of a nested object; None if it is absent."""
        value = self._checked(name, dict, "an object")
        if value is None:
            return None
        return Fields(value, self.path(name), self.ignored, self.pictures)

    def array(self, name: str, max_items: int) -> Sequence[Any] | None:
        """Return a list of limited length."""
        return self._checked(
            name,
            list,
            f"a list with at most {max_items} items",
            lambda items: len(items) <= max_items,
        )

    def required(self, value: T | None, name: str, expected: str) -> T:
        """Return the value of a required field.

        Raises:
            ApiError: The value is None.
        """
        if value is None:
            raise self.missing_value(name, expected)
        return value

    def _checked(
        self,
        name: str,
        expected_type: type[T],
        expected: str,
        is_valid: Callable[[T], bool] = lambda value: True,
    ) -> T | None:
        """Return a field; None if it is absent.

        Raises:
            ApiError: The field has another type or is not valid.
        """
        value = self.value(name)
        if value is not None and not (type(value) is expected_type and is_valid(value)):
            raise self.wrong_value(name, expected)
        return value

    def ignore_rest(self) -> None:
        """Add all unread fields to the ignored ones, except fields that are null or empty."""
        for name, value in self._values.items():
            if name not in self.read_names and value not in (None, [], {}, ""):
                self.ignore(self.path(name))

    def ignore(self, path: str) -> None:
        """Add a path to the ignored ones."""
        if len(self.ignored) < MAX_IGNORED:
            path = _INDEX.sub("[]", path[:MAX_PATH_CHARS])
            self.ignored.add(clean_line(path, MAX_PATH_CHARS))

    def wrong_value(self, name: str, expected: str) -> ApiError:
        """Return the refusal of a field with a wrong value."""
        value = describe(self._values.get(name))
        return invalid(self.path(name), f"is {value}: must be {expected}")

    def missing_value(self, name: str, expected: str) -> ApiError:
        """Return the refusal of a request without a required field."""
        path = self.path(name)
        return ApiError(
            f"{path} is missing: must be {expected}",
            param=path,
            code="missing_required_parameter",
        )


def is_valid_text(text: str) -> bool:
    """Whether a text can be encoded: it has no lone surrogates (halves of characters)."""
    return _SURROGATES.search(text) is None


def is_short_text(value: Any, max_chars: int) -> bool:
    """Whether a value is a valid text of limited length."""
    return isinstance(value, str) and len(value) <= max_chars and is_valid_text(value)


def replace_surrogates(text: str) -> str:
    """Return the text with U+FFFD instead of lone surrogates."""
    return _SURROGATES.sub("\ufffd", text)


def as_integer(value: Any) -> Any:
    """Return 4 for 4.0, and any other value unchanged."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def describe(value: object) -> str:
    """Return a short description of a JSON value for an error message."""
    match value:
        case None | bool():
            return json.dumps(value)
        case str():
            ellipsis = "" if len(value) <= 40 else "…"
            return f'"{value[:40]}{ellipsis}"'
        case float():
            return f"{value:g}"
        case int():
            return str(value)
        case list():
            return f"a list with {len(value)} items"
        case _:
            return "an object"


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number in JSON")


def _limited_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return int(digits)

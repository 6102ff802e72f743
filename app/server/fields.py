"""One JSON object of a request, read field by field; each has a type and limits.

A field that is null counts as absent, as the API's clients expect. What no one reads is ignored and
noted: clients, gateways and other servers add fields of their own all the time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from app.server.api_error import ApiError, invalid
from app.text.clean_text import clean_line

T = TypeVar("T")

MOST_DIGITS = 400
"""Digits of a number; JavaScript's largest has 309."""
MOST_IGNORED = 100
"""Limit on the ignored fields that are noted of one request."""
MOST_PLACE_CHARS = 80
"""Limit on the name of an ignored field."""
_BOM = "\ufeff"
_WRAPPERS = ("extra_body", "nvext")
"""Objects of further fields: of OpenAI's client, sent as it stands, and of NVIDIA's servers."""
_HALVES = re.compile("[\ud800-\udfff]")
"""Halves of characters, as programs leave them that cut texts between the two."""
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
_INDEX = re.compile(r"\[\d+\]")


def read_json(body: bytes) -> Fields:
    """Return the object in a request's body. Raises ApiError: it is not JSON, or not an object."""
    # each number costs a call then
    if _has_long_number(body):
        parse_int = _bounded_int
    else:
        parse_int = None
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
        raise ApiError(f"the body is {kind_of(value)}: must be an object", code="invalid_type")
    return Fields(value)


def _has_long_number(body: bytes) -> bool:
    """Whether there are more digits in a row than a number may have, in a number or in a text."""
    return b"0" * (MOST_DIGITS + 1) in body.translate(_DIGITS_TO_ZERO)


class Fields:
    """Fields of an object.

    Args:
        where: the object's own place in the request; "" for the request itself.
        ignored: shared by all objects of a request; None for a request of its own.

    Attributes:
        taken: names of the fields that were asked for.
        ignored: places that were left out, without the numbers of items: ``messages[].name``.
    """

    def __init__(
        self, values: Mapping[str, Any], where: str = "", ignored: set[str] | None = None
    ) -> None:
        self._values = values
        self.where = where
        self.taken: set[str] = set()
        self.ignored: set[str] = set() if ignored is None else ignored

    def item(self, value: Any, place: str) -> Fields:
        """Return an item of a list at a place in the request. Raises ApiError: it is no object."""
        if not isinstance(value, dict):
            raise ApiError(
                f"{place} is {kind_of(value)}: must be an object", param=place, code="invalid_type"
            )
        return Fields(value, place, self.ignored)

    def opened(self) -> Fields:
        """Return the fields, and those from an object of further ones.

        Clients put into it what OpenAI's API does not know.
        """
        values = dict(self._values)
        for name in _WRAPPERS:
            if isinstance(values.get(name), dict):
                values = {**values.pop(name), **values}
        return Fields(values, self.where, self.ignored)

    def place(self, name: str) -> str:
        """The field's place in the request, as ``messages[2].content``."""
        if self.where:
            return f"{self.where}.{name}"
        return name

    def any(self, name: str) -> Any:
        """Return a field of any type, None where it is absent."""
        self.taken.add(name)
        return self._values.get(name)

    def has(self, name: str) -> bool:
        """Whether the field has a value."""
        return self.any(name) is not None

    def is_given(self, name: str) -> bool:
        """Whether the field is there, even as null."""
        self.taken.add(name)
        return name in self._values

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return a string of whole characters."""
        value = self._checked(name, str, "a string of whole characters", is_whole_text)
        if value is None:
            return default
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self._checked(name, bool, "true or false")
        if value is None:
            return default
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        """Return a number within limits."""
        kind = int if type(self._values.get(name)) is int else float
        value = self._checked(
            name, kind, f"a number from {least:g} to {most:g}", lambda it: least <= it <= most
        )
        if value is None:
            return None
        return float(value)

    def whole(self, name: str, least: int, most: int) -> int | None:
        """Return a whole number within limits; it may be written as 4.0."""
        value = as_whole(self.any(name))
        if value is not None and not (type(value) is int and least <= value <= most):
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return value

    def _checked(
        self,
        name: str,
        kind: type[T],
        what: str,
        is_right: Callable[[T], bool] = lambda value: True,
    ) -> T | None:
        value = self.any(name)
        if value is not None and not (type(value) is kind and is_right(value)):
            raise self.wrong(name, what)
        return value

    def word(self, name: str, *words: str) -> str | None:
        """Return one of some words."""
        return self._checked(name, str, f"one of {', '.join(words)}", lambda word: word in words)

    def table(self, name: str) -> Fields | None:
        """Return an object within this one."""
        value = self._checked(name, dict, "an object")
        if value is None:
            return None
        return Fields(value, self.place(name), self.ignored)

    def items(self, name: str, most: int) -> Sequence[Any] | None:
        """Return a list of limited length."""
        return self._checked(
            name, list, f"a list with at most {most} items", lambda it: len(it) <= most
        )

    def required(self, value: T | None, name: str, wanted: str) -> T:
        """Return the value of a field that must be there. Raises ApiError: it is not."""
        if value is None:
            raise self.missing(name, wanted)
        return value

    def ignore_rest(self) -> None:
        """Note what no one has asked for. A field that is null or empty asks for nothing."""
        for name, value in self._values.items():
            if name not in self.taken and value not in (None, [], {}, ""):
                self.note_ignored(self.place(name))

    def note_ignored(self, place: str) -> None:
        """Note something that is left out."""
        if len(self.ignored) < MOST_IGNORED:
            self.ignored.add(
                clean_line(_INDEX.sub("[]", place[:MOST_PLACE_CHARS]), MOST_PLACE_CHARS)
            )

    def wrong(self, name: str, wanted: str) -> ApiError:
        """Return the refusal of a field that is there and not what it must be."""
        return invalid(self.place(name), f"is {kind_of(self._values.get(name))}: must be {wanted}")

    def missing(self, name: str, wanted: str) -> ApiError:
        """Return the refusal of a request without a field."""
        place = self.place(name)
        return ApiError(
            f"{place} is missing: must be {wanted}", param=place, code="missing_required_parameter"
        )


def is_whole_text(text: str) -> bool:
    """Whether a text has no half of a character (a lone surrogate), which cannot be encoded."""
    return _HALVES.search(text) is None


def is_short_text(value: Any, most_chars: int) -> bool:
    """Whether a value is a text of whole characters that is not longer."""
    return isinstance(value, str) and len(value) <= most_chars and is_whole_text(value)


def whole_text(text: str) -> str:
    """Return a text with a mark in place of each half of a character: it is read all the same."""
    return _HALVES.sub("\ufffd", text)


def as_whole(value: Any) -> Any:
    """Return a whole number that is written as 4.0 as one, everything else as it is."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def kind_of(value: object) -> str:
    """Say in a few words what a value is."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        if len(value) <= 40:
            return f'"{value[:40]}"'
        return f'"{value[:40]}…"'
    if isinstance(value, (int, float)):
        if isinstance(value, float):
            return f"{value:g}"
        return str(value)
    if isinstance(value, list):
        return f"a list with {len(value)} items"
    return "an object"


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number in JSON")


def _bounded_int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError("a number has too many digits")
    return int(digits)

"""Calls of tools as data, and the limits on what is taken for one: replies and clients are
untrusted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import shown

MOST_NAME_CHARS = 128
"""Limit on the name of a tool; MCP allows as many."""
NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MOST_NAME_CHARS}}}")
MOST_DEPTH = 32
"""Limit on how deep arguments and schemas are nested."""
MOST_CALL_CHARS = 1 << 17
"""Limit on a call in characters; a longer one is text."""
MOST_CALLS = 64
"""Limit on the calls of one reply."""


Schemas = Mapping[str, Mapping[str, Any]]
"""Names of tools, and the JSON schemas of their parameters."""


@dataclass(frozen=True)
class ToolCall:
    """A call.

    Attributes:
        name: of the tool; as ``NAME``.
        arguments: an object as JSON.
        call_id: by which its result names it.
    """

    name: str
    arguments: str = "{}"
    call_id: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """The arguments as an object."""
        found = json.loads(self.arguments)
        assert isinstance(found, dict)
        return found


@dataclass(frozen=True)
class CallResult:
    """Result of a call; ``name``: of the tool; ``text``: as the model is to read it; ``call_id``:
    of the call."""

    name: str
    text: str
    call_id: str = ""


def load_json(text: str) -> Any:
    """Return the value of JSON text.

    Raises:
        ValueError: it is not JSON, nested too deeply, or holds numbers that JSON lacks.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if is_deep(value):
        raise ValueError("nested too deeply")
    return value


def first_json(text: str, start: int) -> tuple[Any, int]:
    """Return the value that begins at an offset, and the offset after it.

    Raises ValueError: none begins there.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if is_deep(value):
        raise ValueError("nested too deeply")
    return value, end


def is_deep(value: Any) -> bool:
    """Whether a JSON value is nested deeper than ``MOST_DEPTH``."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            part
            for one in level
            if isinstance(one, (dict, list))
            for part in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def call(name: Any, arguments: Any) -> ToolCall | None:
    """Return a call if name and arguments can be those of one."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return None
    if isinstance(arguments, str):
        try:
            arguments = load_json(arguments or "{}")
        except ValueError:
            return None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict) or is_deep(arguments):
        return None
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def call_of(value: Any) -> ToolCall | None:
    """Return the call that a JSON object describes, in any of the usual ways; None if it describes
    none."""
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("function"), Mapping):
        value = value["function"]
    name = value.get("name", value.get("function"))
    return call(name, value.get("arguments", value.get("parameters")))


def calls_of(value: Any) -> list[ToolCall]:
    """Return the calls of a JSON object or a list of them; none unless all are calls."""
    if isinstance(value, list):
        items = value
    else:
        items = [value]
    found = [call_of(item) for item in items]
    if all(found):
        return [one for one in found if one is not None]
    return []


def misfit(call: ToolCall, tools: Schemas) -> str:
    """Say why a call fits none of the tools: its name, or the first level of its arguments; "" if
    it fits."""
    if call.name not in tools:
        return "there is no tool of this name"
    schema = tools[call.name]
    values = call.values
    required = schema.get("required")
    properties = schema.get("properties")
    for name in required if isinstance(required, list) else ():
        if name not in values:
            return f"{shown(str(name))} is missing"
    for name, value in values.items():
        if isinstance(properties, dict):
            known = properties.get(name)
        else:
            known = None
        if known is None and schema.get("additionalProperties") is False:
            return f"it has no parameter {shown(name)}"
        if isinstance(known, dict) and not _is_of(value, known):
            return f"{shown(name)} is of another kind"
    return ""


def _is_of(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value has the type of a schema, and is one of its ``enum``, as far as it names
    them."""
    kinds = schema.get("type")
    allowed = schema.get("enum")
    if isinstance(kinds, str):
        kinds = [kinds]
    elif not isinstance(kinds, list):
        kinds = []
    checked = [
        _IS_KIND[kind](value) for kind in kinds if isinstance(kind, str) and kind in _IS_KIND
    ]
    return (not checked or any(checked)) and (not isinstance(allowed, list) or value in allowed)


_IS_KIND: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number in JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)

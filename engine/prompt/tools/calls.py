"""Tool calls as data, and limits on them, since replies and clients are untrusted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import printable

MAX_NAME_CHARS = 128
"""Limit on the characters of a tool's name, the same as in MCP."""
NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME_CHARS}}}")
MAX_DEPTH = 32
"""Limit on the nesting of arguments and schemas."""
MAX_CALL_CHARS = 1 << 17
"""Limit on the characters of a call; a longer one counts as text."""
MAX_CALLS = 64
"""Limit on the calls of one reply."""


Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schemas of the tools' parameters, by the tool's name."""


@dataclass(frozen=True)
class ToolCall:
    """Call of a tool.

    Attributes:
        name: name of the tool, which matches ``NAME``.
        arguments: arguments as the text of a JSON object.
        call_id: id of the call, for its result.
    """

    name: str
    arguments: str = "{}"
    call_id: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """Arguments as a dictionary."""
        values = json.loads(self.arguments)
        assert isinstance(values, dict)
        return values


@dataclass(frozen=True)
class CallResult:
    """Result of a tool call.

    Attributes:
        name: name of the tool.
        text: text for the model.
        call_id: id of the call.
    """

    name: str
    text: str
    call_id: str = ""


def load_json(text: str) -> Any:
    """Return the value of JSON text.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or has NaN or infinity.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if is_deep(value):
        raise ValueError("nested too deeply")
    return value


def first_json(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at an offset, and the offset after it.

    Raises ValueError: no value begins there.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if is_deep(value):
        raise ValueError("nested too deeply")
    return value, end


def is_deep(value: Any) -> bool:
    """Whether a JSON value is nested deeper than ``MAX_DEPTH``."""
    level = [value]
    for _ in range(MAX_DEPTH):
        children: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                children += node.values()
            elif isinstance(node, list):
                children += node
        level = children
        if not level:
            return False
    return True


def call(name: Any, arguments: Any) -> ToolCall | None:
    """Return a call with a name and arguments; None if they are not valid."""
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
    """Return the call that a JSON object describes in one of the usual forms; None if it does
    not."""
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("function"), Mapping):
        value = value["function"]
    name = value.get("name", value.get("function"))
    return call(name, value.get("arguments", value.get("parameters")))


def calls_of(value: Any) -> list[ToolCall]:
    """Return the calls of a JSON object or a list of objects; empty unless all are calls."""
    values = value if isinstance(value, list) else [value]
    calls = [call_of(item) for item in values]
    if all(calls):
        return [tool_call for tool_call in calls if tool_call is not None]
    return []


def misfit(call: ToolCall, tools: Schemas) -> str:
    """Return the reason why a call fits none of the tools, by its name and the first level of its
    arguments; empty if it fits."""
    if call.name not in tools:
        return "there is no tool of this name"
    schema = tools[call.name]
    values = call.values
    required = schema.get("required")
    properties = schema.get("properties")
    if isinstance(required, list):
        for name in required:
            if name not in values:
                return f"{printable(str(name))} is missing"
    for name, value in values.items():
        parameter = properties.get(name) if isinstance(properties, dict) else None
        if parameter is None and schema.get("additionalProperties") is False:
            return f"it has no parameter {printable(name)}"
        if isinstance(parameter, dict) and not _is_of(value, parameter):
            return f"{printable(name)} is of another kind"
    return ""


def _is_of(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value has a type of the schema and is in its ``enum``, if it has these."""
    types = schema.get("type")
    allowed = schema.get("enum")
    if isinstance(types, str):
        types = [types]
    elif not isinstance(types, list):
        types = []
    checked = [
        _TYPE_CHECKS[type_name](value)
        for type_name in types
        if isinstance(type_name, str) and type_name in _TYPE_CHECKS
    ]
    return (not checked or any(checked)) and (not isinstance(allowed, list) or value in allowed)


_TYPE_CHECKS: dict[str, Callable[[Any], bool]] = {
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

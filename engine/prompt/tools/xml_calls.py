"""Calls written as tags: a tag for each parameter (Qwen3-Coder, Qwen 3.5, Nemotron), or keys and
values (GLM)."""

from __future__ import annotations

import re
from typing import Any

from engine.prompt.tools.calls import Schemas, ToolCall, call, load_json

_FUNCTION = re.compile(
    r"<function=([^>\s]{1,128})>(.*?)(?:</function>|(?=<function=)|\Z)", re.DOTALL
)
_PARAMETER = re.compile(
    r"<parameter=([^>\n]{1,128})>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL
)
_GLM_NAME = re.compile(r"<tool_call>\s*([^\s<]{1,128})")
_GLM_PAIR = re.compile(
    r"<arg_key>(.{1,128}?)</arg_key>\s*<arg_value>(.*?)(?:</arg_value>|(?=<arg_key>)|\Z)", re.DOTALL
)


def read_functions(region: str, tools: Schemas) -> list[ToolCall]:
    """Read functions with their parameters."""
    calls = [
        _call(name, _PARAMETER.findall(body), tools) for name, body in _FUNCTION.findall(region)
    ]
    if all(calls):
        return [tool_call for tool_call in calls if tool_call is not None]
    return []


def read_pairs(region: str, tools: Schemas) -> list[ToolCall]:
    """Read a name with pairs of keys and values."""
    name = _GLM_NAME.match(region)
    if name is None:
        return []
    tool_call = _call(name[1], _GLM_PAIR.findall(region), tools)
    return [] if tool_call is None else [tool_call]


def _call(name: str, pairs: list[tuple[str, str]], tools: Schemas) -> ToolCall | None:
    properties = tools.get(name, {}).get("properties")
    parameters = properties if isinstance(properties, dict) else {}
    return call(
        name, {key.strip(): _value(text, parameters.get(key.strip())) for key, text in pairs}
    )


def _value(text: str, schema: Any) -> Any:
    """Return a value that is written without quotes: a string if the schema has one or if it is not
    JSON, else the JSON value."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        value = load_json(text)
    except ValueError:
        return text
    if isinstance(value, str):
        return text
    return value

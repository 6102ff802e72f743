"""Calls written as tags: Qwen3-Coder, Qwen 3.5 and Nemotron with a tag for each parameter, GLM with
keys and values."""

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
    found = [
        _call(name, _PARAMETER.findall(body), tools) for name, body in _FUNCTION.findall(region)
    ]
    if all(found):
        return [one for one in found if one is not None]
    return []


def read_pairs(region: str, tools: Schemas) -> list[ToolCall]:
    """Read a name with pairs of keys and values."""
    name = _GLM_NAME.match(region)
    if name is not None:
        one = _call(name[1], _GLM_PAIR.findall(region), tools)
    else:
        one = None
    if one is not None:
        return [one]
    return []


def _call(name: str, pairs: list[tuple[str, str]], tools: Schemas) -> ToolCall | None:
    properties = tools.get(name, {}).get("properties")
    if isinstance(properties, dict):
        known = properties
    else:
        known = {}
    return call(name, {key.strip(): _value(text, known.get(key.strip())) for key, text in pairs})


def _value(text: str, schema: Any) -> Any:
    """Return a value written without quotes: text where the schema has a string, JSON where it is
    JSON."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        value = load_json(text)
    except ValueError:
        return text
    if isinstance(value, str):
        return text
    return value

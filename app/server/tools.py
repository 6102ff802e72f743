"""Tools of a request, checked: what the model may call, and whether it must."""

from __future__ import annotations

import json
from typing import Any

from app.server.api_error import ApiError, invalid
from app.server.fields import Fields
from app.text.record import record
from engine.prompt.tools.calls import MOST_DEPTH, NAME, ToolCall, call, is_deep

MOST_TOOLS = 128
MOST_TOOLS_CHARS = 1 << 18
"""Limit on all tools together, as JSON."""
MOST_ID_CHARS = 64
_NAME_RULE = "1 to 64 letters, digits, _, - or ."
AUTO, NONE, REQUIRED = "auto", "none", "required"


@record
class Tools:
    """Tools that the model may call."""

    items: tuple[dict[str, Any], ...]
    """As templates take them."""
    must: tuple[str, ...] = ()
    """Names of the tools of which one must be called; none where the model may choose."""
    takes_one: bool = False
    """Whether a reply has one call at most."""


def read_tools(fields: Fields) -> Tools | None:
    """Read ``tools``, ``tool_choice`` and ``parallel_tool_calls``; None where nothing is to be called.

    Raises:
        ApiError: they are wrong.
    """
    items = fields.items("tools", MOST_TOOLS) or ()
    tools = tuple(_tool(item, f"tools[{at}]") for at, item in enumerate(items))
    names = [tool["function"]["name"] for tool in tools]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise invalid(f"tools[{at}].function.name", f'"{name}" is there twice')
    if len(json.dumps(tools)) > MOST_TOOLS_CHARS:
        raise ApiError(f"tools are longer than {MOST_TOOLS_CHARS} characters", param="tools", code="too_long")
    choice = _choice(fields)
    takes_one = not fields.flag("parallel_tool_calls", True)
    if not tools and choice not in (AUTO, NONE):
        raise ApiError("tool_choice needs tools", param="tool_choice", code="invalid_value")
    if choice not in (AUTO, NONE, REQUIRED) and choice not in names:
        raise invalid("tool_choice.function.name", f'"{choice}" is none of the tools')
    if not tools or choice == NONE:
        return None
    must = {AUTO: (), REQUIRED: tuple(names)}.get(choice, (choice,))
    return Tools(tools, must, takes_one or bool(must))


def _choice(fields: Fields) -> str:
    given = fields.any("tool_choice")
    if not isinstance(given, dict):
        return fields.word("tool_choice", AUTO, NONE, REQUIRED) or AUTO
    choice = Fields(given, "tool_choice")
    choice.word("type", "function")
    function = choice.table("function")
    name = function.text("name") if function is not None else None
    if function is None or not name:
        raise choice.missing("function.name", "the name of a tool")
    function.refuse_rest()
    choice.refuse_rest()
    return name


def _tool(item: Any, place: str) -> dict[str, Any]:
    tool = Fields.of(item, place)
    tool.required(tool.word("type", "function"), "type", "function")
    function = tool.required(tool.table("function"), "function", "an object with a name")
    tool.refuse_rest()
    name = _name(function)
    description = function.text("description", "")
    parameters = function.any("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    _check_schema(function, parameters)
    function.flag("strict")
    function.refuse_rest()
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _check_schema(function: Fields, schema: Any) -> None:
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise function.wrong("parameters", 'a JSON schema of type "object"')
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, dict) or not all(isinstance(one, (dict, bool)) for one in properties.values()):
        raise function.wrong("parameters", "a JSON schema whose properties are schemas")
    if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
        raise function.wrong("parameters", "a JSON schema whose required are names")
    if is_deep(schema):
        raise function.wrong("parameters", f"nested at most {MOST_DEPTH} deep")


def read_calls(message: Fields) -> tuple[ToolCall, ...]:
    """Read ``tool_calls`` of an assistant's message."""
    items = message.items("tool_calls", MOST_TOOLS) or ()
    return tuple(_call(item, f"{message.place('tool_calls')}[{at}]") for at, item in enumerate(items))


def _call(item: Any, place: str) -> ToolCall:
    given = Fields.of(item, place)
    given.required(given.word("type", "function"), "type", "function")
    given.any("index")  # of a stream whose pieces a client put together
    function = given.required(given.table("function"), "function", "an object with name and arguments")
    name = _name(function)
    arguments = function.text("arguments", "{}")
    found = call(name, arguments)
    if found is None:
        raise function.wrong("arguments", f"a JSON object in a string, nested at most {MOST_DEPTH} deep")
    call_id = read_id(given, "id")
    function.refuse_rest()
    given.refuse_rest()
    return ToolCall(found.name, found.arguments, call_id)


def read_id(fields: Fields, name: str) -> str:
    """Read the id of a call."""
    call_id = fields.text(name)
    if not call_id:
        raise fields.missing(name, "the id of a call")
    if len(call_id) > MOST_ID_CHARS:
        raise fields.wrong(name, f"a string of at most {MOST_ID_CHARS} characters")
    return call_id


def _name(function: Fields) -> str:
    name = function.required(function.text("name"), "name", _NAME_RULE)
    if not NAME.fullmatch(name):
        raise function.wrong("name", _NAME_RULE)
    return name

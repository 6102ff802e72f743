"""Messages and tools of a request, checked: who says what, and what the model may call.

The messages are in an order that a conversation can have.
"""

from __future__ import annotations

import json
from typing import Any

from app.server.api_error import ApiError, invalid, unsupported
from app.server.fields import Fields, kind_of
from app.text.record import record
from engine.prompt.tools.calls import MOST_DEPTH, NAME, ToolCall, call, is_deep

MOST_MESSAGES = 10_000
MOST_TOOLS = 128
MOST_TOOLS_CHARS = 1 << 18
"""Limit on all tools together, as JSON."""
MOST_ID_CHARS = 64
_NAME_RULE = "1 to 64 letters, digits, _, - or ."
AUTO, NONE, REQUIRED = "auto", "none", "required"
SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"
_ROLES = {"system": SYSTEM, "developer": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL}


@record
class Said:
    """A message."""

    role: str
    """``system``, ``user``, ``assistant`` or ``tool``."""
    text: str
    calls: tuple[ToolCall, ...] = ()
    """Of an assistant."""
    call_id: str = ""
    """Of the call whose result this is."""


@record
class Tools:
    """Tools that the model may call."""

    items: tuple[dict[str, Any], ...]
    """As templates take them."""
    must: tuple[str, ...] = ()
    """Names of the tools of which one must be called; none where the model may choose."""
    takes_one: bool = False
    """Whether a reply has one call at most."""


def read_messages(fields: Fields, is_continued: bool = False) -> tuple[Said, ...]:
    """Return the conversation; several system messages at its beginning become one.

    Args:
        is_continued: whether the last message is the beginning of the reply.

    Raises:
        ApiError: it is none that can be answered.
    """
    items = fields.items("messages", MOST_MESSAGES)
    if not items:
        raise fields.missing("messages", "a list of messages, the last one of the user")
    said = [_read_message(item, f"messages[{at}]") for at, item in enumerate(items)]
    n_system = next((at for at, one in enumerate(said) if one.role != SYSTEM), len(said))
    for at, one in enumerate(said[n_system:], n_system):
        before = said[at - 1].role if at else ""
        if one.role == SYSTEM:
            raise _misplaced(at, "a system message must stand before all others")
        if one.role == ASSISTANT and before not in (USER, TOOL):
            raise _misplaced(at, "an assistant's message must follow a user's or a tool's")
    _check_results(said)
    last, whose = ((ASSISTANT,), "assistant's, which goes on") if is_continued else ((USER, TOOL), "user's or a tool's")
    if said[-1].role not in last:
        raise _misplaced(len(said) - 1, f"the last message must be the {whose}")
    system = "\n\n".join(one.text for one in said[:n_system] if one.text)
    return (*([Said(SYSTEM, system)] if system else []), *said[n_system:])


def _check_results(said: list[Said]) -> None:
    """Refuse results without a call, and calls without a result."""
    open_ids: set[str] = set()
    for at, one in enumerate(said):
        if one.role == TOOL:
            if one.call_id not in open_ids:
                why = "no call before it has this id, or it has a result already"
                raise invalid(f"messages[{at}].tool_call_id", why)
            open_ids.remove(one.call_id)
        elif open_ids:
            raise _misplaced(at, "each call before it needs a message of role tool with its result")
        open_ids |= {call.call_id for call in one.calls}
        if len(open_ids) < len(one.calls):
            raise invalid(f"messages[{at}].tool_calls", "two calls have the same id")
    if open_ids:
        raise _misplaced(len(said) - 1, "each call needs a message of role tool with its result")


def _misplaced(at: int, why: str) -> ApiError:
    return invalid(f"messages[{at}].role", why)


def _read_message(item: Any, place: str) -> Said:
    message = Fields.of(item, place)
    role = message.text("role")
    if role == "function":
        raise unsupported(message.place("role"), f"{role} is not supported (allowed: {', '.join(_ROLES)})")
    if role not in _ROLES:
        raise message.wrong("role", f"one of {', '.join(_ROLES)}") if role else message.missing("role", "user")
    items = (message.items("tool_calls", MOST_TOOLS) if role == ASSISTANT else None) or ()
    calls = tuple(_call(item, f"{place}.tool_calls[{at}]") for at, item in enumerate(items))
    call_id = _read_id(message, "tool_call_id") if role == TOOL else ""
    if role == TOOL:
        message.text("name")  # the call has it
    for name in ("tool_calls", "function_call", "name", "audio", "tool_call_id"):
        if name not in message.taken and message.any(name) not in (None, []):
            raise unsupported(message.place(name), "is not supported")
    for name in ("refusal", "reasoning_content", "annotations"):
        message.any(name)  # parts of an answer of ours that a client sends back; the thought's tokens are kept here
    text = "" if calls and not message.has("content") else _content(message)
    message.refuse_rest()
    return Said(_ROLES[role], text, calls, call_id)


def _content(message: Fields) -> str:
    given = message.required(message.any("content"), "content", "a string or a list of text parts")
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise message.wrong("content", "a string or a list of text parts")
    return "".join(_part(item, f"{message.place('content')}[{at}]") for at, item in enumerate(given))


def _part(item: Any, place: str) -> str:
    part = Fields.of(item, place)
    kind = part.text("type")
    if kind != "text":
        shown = kind_of(kind) if kind is not None else "missing"
        raise unsupported(part.place("type"), f"is {shown}: only text is supported")
    text = part.required(part.text("text"), "text", "a string")
    part.refuse_rest()
    return text


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
    call_id = _read_id(given, "id")
    function.refuse_rest()
    given.refuse_rest()
    return ToolCall(found.name, found.arguments, call_id)


def _read_id(fields: Fields, name: str) -> str:
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

"""Messages and tools of a request, checked: who says what, and what the model may call."""

from __future__ import annotations

import json
from typing import Any

from app.conversations.conversation import ASSISTANT, SYSTEM, TOOL, USER, Said
from app.server.api_error import ApiError, invalid, unsupported
from app.server.fields import Fields, kind_of
from app.text.record import record
from engine.prompt.tools.calls import MOST_DEPTH, NAME, CallResult, ToolCall, call, is_deep

MOST_MESSAGES = 10_000
MOST_TOOLS = 128
MOST_TOOLS_CHARS = 1 << 18
"""Limit on all tools together, as JSON."""
_NAME_RULE = "1 to 64 letters, digits, _, - or ."
AUTO, NONE, REQUIRED, ANY = "auto", "none", "required", "any"
_ROLES = {
    "system": SYSTEM, "developer": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL, "function": TOOL,
}  # fmt: skip
_CONTENT = "a string or a list of text parts"
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of text by the field that holds it."""
_THOUGHT_PARTS = "thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text"
_OF_REPLIES = (
    "name", "refusal", "reasoning", "reasoning_content", "annotations", "audio", "parsed", "function_call",
    "tool_calls", "thinking", "tool_name",
)  # fmt: skip
"""Fields of replies that clients send back, which change nothing here: the tokens of a thought are kept."""


@record
class Tools:
    """Tools that the model may call."""

    items: tuple[dict[str, Any], ...]
    """As templates take them."""
    must: tuple[str, ...] = ()
    """Names of the tools of which one must be called; none where the model may choose."""
    takes_one: bool = False
    """Whether a reply has one call at most."""
    may_call: bool = True
    """Whether the model may call any; else it is told of them alone, so that what was read before serves."""


def read_messages(fields: Fields) -> list[Said]:
    """Return who says what, in the order of the request. Raises ApiError: a message cannot be read."""
    items = fields.items("messages", MOST_MESSAGES)
    if not items:
        raise fields.missing("messages", "a list of messages, the last one of the user")
    return [read_message(fields.item(item, f"messages[{at}]")) for at, item in enumerate(items)]


def read_message(message: Fields) -> Said:
    """Read one message. Raises ApiError: it cannot be read, or is no text."""
    role = message.text("role")
    if role not in _ROLES:
        raise message.wrong("role", f"one of {', '.join(_ROLES)}") if role else message.missing("role", "user")
    role = _ROLES[role]
    if message.any("images"):
        raise unsupported(message.place("images"), "is not supported: the model reads no images")
    calls: tuple[ToolCall, ...] = ()
    if role == ASSISTANT:
        items = message.items("tool_calls", MOST_TOOLS) or ()
        calls = tuple(_call(message, item, f"{message.place('tool_calls')}[{at}]") for at, item in enumerate(items))
        old = message.table("function_call")
        calls += (read_call(old, ""),) if old is not None and not calls else ()
    results = (CallResult("", "", message.text("tool_call_id") or ""),) if role == TOOL else ()
    for name in _OF_REPLIES:
        message.any(name)
    if role == USER and not message.has("content"):
        raise message.missing("content", _CONTENT)
    text = read_text(message, "content")
    if not text and role == ASSISTANT and not calls:
        text = message.text("refusal") or ""
    message.ignore_rest()
    return Said(role, text, calls, results)


def read_text(message: Fields, name: str) -> str:
    """Read what a message says: a text, or parts of text. Raises ApiError: it is neither."""
    given = message.any(name)
    if given is None or isinstance(given, str):
        return given or ""
    if not isinstance(given, list):
        raise message.wrong(name, _CONTENT)
    return "".join(_part(message, item, f"{message.place(name)}[{at}]") for at, item in enumerate(given))


def _part(message: Fields, item: Any, place: str) -> str:
    if isinstance(item, str):
        return item
    part = message.item(item, place)
    kind = part.text("type", "text")
    if kind in _THOUGHT_PARTS:
        return ""
    if kind not in _TEXT_PARTS:
        raise unsupported(part.place("type"), f"is {kind_of(kind)}: only text is supported (the model reads no images)")
    name = _TEXT_PARTS[kind]
    text = part.required(part.text(name), name, "a string")
    for name in ("annotations", "logprobs"):
        part.any(name)
    part.ignore_rest()
    return text


def read_tools(fields: Fields) -> Tools | None:
    """Read ``tools``, ``tool_choice`` and ``parallel_tool_calls``; None where there are no tools.

    Raises:
        ApiError: they are wrong.
    """
    items = fields.items("tools", MOST_TOOLS) or ()
    found = (_tool(fields, item, f"tools[{at}]") for at, item in enumerate(items))
    tools = tuple(tool for tool in found if tool is not None)
    names = [tool["function"]["name"] for tool in tools]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise invalid(f"tools[{at}].function.name", f'is "{name}", as another is called')
    if len(json.dumps(tools)) > MOST_TOOLS_CHARS:
        raise ApiError(f"tools are longer than {MOST_TOOLS_CHARS} characters", param="tools", code="too_long")
    choice, allowed = _choice(fields)
    takes_one = not fields.flag("parallel_tool_calls", True)
    if not tools and not items and choice not in (AUTO, NONE):
        raise invalid("tool_choice", "needs tools")
    if choice not in (AUTO, NONE, REQUIRED) and choice not in names:
        raise invalid("tool_choice.function.name", f'is "{choice}": none of the tools')
    if allowed is not None:
        tools = tuple(tool for tool in tools if tool["function"]["name"] in allowed)
        names = [tool["function"]["name"] for tool in tools]
    if not tools:
        return None
    if choice == NONE:
        return Tools(tools, may_call=False)
    must = {AUTO: (), REQUIRED: tuple(names)}.get(choice, (choice,))
    return Tools(tools, must, takes_one or bool(must))


def _choice(fields: Fields) -> tuple[str, tuple[str, ...] | None]:
    """Return which tools are to be called, or the name of one; and those to choose among, None for all."""
    given = fields.any("tool_choice")
    if not isinstance(given, dict):
        word = fields.word("tool_choice", AUTO, NONE, REQUIRED, ANY) or AUTO
        return REQUIRED if word == ANY else word, None
    choice = fields.item(given, "tool_choice")
    kind = choice.text("type", "function")
    if kind == "allowed_tools":
        inner = choice.table("allowed_tools") or choice
        mode = inner.word("mode", AUTO, REQUIRED) or AUTO
        items = inner.items("tools", MOST_TOOLS) or ()
        allowed = (_named(inner.item(one, f"{inner.place('tools')}[{at}]")) for at, one in enumerate(items))
        return mode, tuple(name for name in allowed if name)
    if kind in (AUTO, NONE, REQUIRED, ANY):
        return REQUIRED if kind == ANY else str(kind), None
    if kind not in ("function", "tool"):
        fields.note_ignored(f"tool_choice of type {kind}")
        return AUTO, None
    name = _named(choice)
    if not name:
        raise choice.missing("function.name", "the name of a tool")
    return name, None


def _named(given: Fields) -> str | None:
    return (given.table("function") or given).text("name")


def _tool(fields: Fields, item: Any, place: str) -> dict[str, Any] | None:
    """Read a tool; None for one of a kind that a provider runs."""
    tool = fields.item(item, place)
    if tool.text("type", "function") != "function":
        fields.note_ignored(f"tools of type {tool.text('type')}")
        return None
    function = tool.table("function")
    if function is None and not tool.has("name"):
        raise tool.missing("function", "an object with a name")
    function = function or tool  # as /v1/responses has it
    name = _name(function)
    description = function.text("description", "")
    parameters = function.any("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    _check_schema(function, parameters)
    function.any("strict")
    function.ignore_rest()
    tool.ignore_rest()
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


def _call(message: Fields, item: Any, place: str) -> ToolCall:
    given = message.item(item, place)
    given.text("type")
    given.any("index")  # of a stream whose pieces a client put together
    function = given.required(given.table("function"), "function", "an object with name and arguments")
    found = read_call(function, given.text("id") or "")
    given.ignore_rest()
    return found


def read_call(function: Fields, call_id: str) -> ToolCall:
    """Read what a call says. Raises ApiError: it is none that a template can print."""
    name = _name(function)
    given = function.any("arguments")
    arguments = given if isinstance(given, str) else json.dumps(given if given is not None else {})
    found = call(name, "{}" if arguments.strip() in ("", "null") else arguments)
    if found is None:
        raise function.wrong("arguments", f"a JSON object in a string, nested at most {MOST_DEPTH} deep")
    function.any("parsed_arguments")
    function.ignore_rest()
    return ToolCall(found.name, found.arguments, call_id)


def _name(function: Fields) -> str:
    name = function.required(function.text("name"), "name", _NAME_RULE)
    if not NAME.fullmatch(name):
        raise function.wrong("name", _NAME_RULE)
    return name

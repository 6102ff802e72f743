"""Messages and tools of a request, checked: who says what, and what the model may call."""

from __future__ import annotations

import json
import re
from typing import Any

from app.conversations.conversation import ASSISTANT, SYSTEM, TOOL, USER, PromptMessage
from app.server.api_error import ApiError, invalid, unsupported
from app.server.fields import Fields, kind_of, whole_text
from app.text.record import record
from engine.prompt.tools.calls import (
    MOST_DEPTH,
    MOST_NAME_CHARS,
    NAME,
    CallResult,
    ToolCall,
    is_deep,
    load_json,
)

MOST_MESSAGES = 100_000
MOST_TOOLS = 128
MOST_TOOLS_CHARS = 1 << 18
"""Limit on all tools together, as JSON."""
_NAME_RULE = f"1 to {MOST_NAME_CHARS} letters, digits, _, - or ."
_NO_NAME_CHARS = re.compile(r"[^A-Za-z0-9_.-]+")
_NAMELESS = "unknown"
"""Name of a tool in place of one that is empty."""
AUTO = "auto"
NONE = "none"
REQUIRED = "required"
ANY = "any"
_ROLES = {
    "system": SYSTEM, "developer": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL,
    "function": TOOL,
}  # fmt: skip
_CONTENT = "a string or a list of text parts"
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of text by the field that holds it."""
_THOUGHT_PARTS = "thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text"
_OF_REPLIES = (
    "name", "refusal", "reasoning", "reasoning_content", "annotations", "audio", "parsed",
    "function_call",
    "tool_calls", "thinking", "tool_name", "prefix",
)  # fmt: skip
"""Fields of replies that clients send back, which change nothing here: the tokens of a thought are
kept."""


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
    """Whether the model may call any; else it is told of them alone, so that what was read before
    serves."""


def read_messages(fields: Fields) -> list[PromptMessage]:
    """Return who says what, in the order of the request.

    Raises ApiError: a message cannot be read.
    """
    items = fields.items("messages", MOST_MESSAGES)
    if not items:
        raise fields.missing("messages", "a list of messages, the last one of the user")
    return [read_message(fields.item(item, f"messages[{at}]")) for at, item in enumerate(items)]


def read_message(message: Fields) -> PromptMessage:
    """Read one message. Raises ApiError: it cannot be read, or is no text."""
    role = message.text("role")
    if role not in _ROLES:
        raise (
            message.wrong("role", f"one of {', '.join(_ROLES)}")
            if role
            else message.missing("role", "user")
        )
    role = _ROLES[role]
    if message.any("images"):
        raise unsupported(message.place("images"), "is not supported: the model reads no images")
    calls: tuple[ToolCall, ...] = ()
    if role == ASSISTANT:
        items = message.items("tool_calls", MOST_TOOLS) or ()
        place = message.place("tool_calls")
        calls = tuple(
            _call(message, item, f"{place}[{at}]")
            for at, item in enumerate(items)
            if item is not None
        )
        old = message.table("function_call")
        if old is not None and not calls:
            calls += (read_call(old, ""),)
        else:
            calls += ()
    results = (CallResult("", "", read_id(message, "tool_call_id")),) if role == TOOL else ()
    for name in _OF_REPLIES:
        message.any(name)
    if role == USER and not message.is_given("content"):
        raise message.missing("content", _CONTENT)
    text = read_text(message, "content", is_result=role == TOOL)
    if not text and role == ASSISTANT and not calls:
        text = message.text("refusal") or ""
    message.ignore_rest()
    return PromptMessage(role, text, calls, results)


def read_id(item: Fields, name: str) -> str:
    """Return the id of a call, which clients also give as a number."""
    call_id = item.any(name)
    if call_id is not None and not isinstance(call_id, (str, int)):
        raise item.wrong(name, "a string")
    if call_id is None:
        return ""
    return str(call_id)


def read_text(message: Fields, name: str, is_result: bool = False) -> str:
    """Read what a message says: a text, or parts of text. Halves of characters become marks.

    Args:
        is_result: whether it is the result of a tool, which may be any value; pictures in it are
            left out.

    Raises:
        ApiError: it is none of these.
    """
    return whole_text(_text(message, name, is_result))


def _text(message: Fields, name: str, is_result: bool) -> str:
    given = message.any(name)
    if given is None or isinstance(given, str):
        return given or ""
    if isinstance(given, dict):
        if "type" not in given and not isinstance(given.get("text"), str):
            return json.dumps(given, ensure_ascii=False)
        given = [given]
    if not isinstance(given, list):
        if not is_result:
            raise message.wrong(name, _CONTENT)
        return json.dumps(given)
    if is_result and any(not isinstance(part, (str, dict)) or _is_data(part) for part in given):
        return json.dumps(given, ensure_ascii=False)
    return "".join(
        _part(message, item, f"{message.place(name)}[{at}]", is_result)
        for at, item in enumerate(given)
    )


def _is_data(part: Any) -> bool:
    """Whether an item of a tool's result is an object of its own, and no part of a message."""
    return isinstance(part, dict) and "type" not in part and "text" not in part


def _part(message: Fields, item: Any, place: str, is_result: bool) -> str:
    if isinstance(item, str):
        return item
    part = message.item(item, place)
    kind = part.text("type", "text")
    if kind in _THOUGHT_PARTS:
        return ""
    if kind not in _TEXT_PARTS:
        if is_result:
            message.note_ignored(f"{kind} in the result of a tool")
            return ""
        raise unsupported(
            part.place("type"),
            f"is {kind_of(kind)}: only text is supported (the model reads no images)",
        )
    name = _TEXT_PARTS[kind]
    text = part.any(name)
    if text is not None and not isinstance(text, str):
        raise part.wrong(name, "a string")
    for name in ("annotations", "logprobs"):
        part.any(name)
    part.ignore_rest()
    return text or ""


def read_tools(fields: Fields) -> Tools | None:
    """Read ``tools``, ``tool_choice`` and ``parallel_tool_calls``; None where there are no tools.

    Raises:
        ApiError: they are wrong.
    """
    items = fields.items("tools", MOST_TOOLS) or ()
    tools: dict[str, dict[str, Any]] = {}
    for index, item in enumerate(items):
        tool = _tool(fields, item, f"tools[{index}]")
        if tool is None:
            continue
        name = tool["function"]["name"]
        if name in tools:
            fields.note_ignored(f"a second tool {name}")
        tools.setdefault(name, tool)
    if len(json.dumps(list(tools.values()))) > MOST_TOOLS_CHARS:
        raise ApiError(
            f"tools are longer than {MOST_TOOLS_CHARS} characters", param="tools", code="too_long"
        )
    choice = _choice(fields)
    takes_one = choice.takes_one or not fields.flag("parallel_tool_calls", True)
    if not items and choice.mode not in (AUTO, NONE):
        raise invalid("tool_choice", "needs tools")
    if choice.name and choice.name not in tools:
        raise invalid(choice.place, f'is "{choice.name}": none of the tools')
    if choice.allowed is not None:
        tools = {name: tool for name, tool in tools.items() if name in choice.allowed}
    if not tools:
        return None
    offered = tuple(tools.values())
    if choice.mode == NONE:
        return Tools(offered, may_call=False)
    must = (choice.name,) if choice.name else (tuple(tools) if choice.mode == REQUIRED else ())
    return Tools(offered, must, takes_one or bool(must))


@record
class _Choice:
    """A choice of tools."""

    mode: str = AUTO
    """``auto``, ``none`` or ``required``."""
    name: str = ""
    """Name of the tool to call; "" for any."""
    place: str = "tool_choice"
    """Place of the name in the request."""
    allowed: tuple[str, ...] | None = None
    """Names of the tools to choose among; None for all."""
    takes_one: bool = False
    """Whether a reply has one call at most."""


def _choice(fields: Fields) -> _Choice:
    """Read ``tool_choice``, in the words of any API."""
    given = fields.any("tool_choice")
    if given is None or given == "":
        return _Choice()
    if not isinstance(given, dict):
        word = fields.text("tool_choice") or AUTO
        if word == ANY:
            mode = REQUIRED
        else:
            mode = word
        if mode in (AUTO, NONE, REQUIRED):
            return _Choice(mode)
        return _Choice(REQUIRED, word)
    choice = fields.item(given, "tool_choice")
    takes_one = choice.flag("disable_parallel_tool_use")
    kind = choice.text("type", "function")
    if kind == "allowed_tools":
        inner = choice.table("allowed_tools") or choice
        mode = inner.word("mode", AUTO, REQUIRED, ANY) or AUTO
        items = inner.items("tools", MOST_TOOLS) or ()
        place = inner.place("tools")
        names = (
            item if isinstance(item, str) else _named(inner.item(item, f"{place}[{index}]"))
            for index, item in enumerate(items)
        )
        allowed = tuple(name for name in names if name)
        return _Choice(REQUIRED if mode == ANY else mode, allowed=allowed, takes_one=takes_one)
    if kind in (AUTO, NONE, REQUIRED, ANY):
        return _Choice(REQUIRED if kind == ANY else str(kind), takes_one=takes_one)
    if kind not in ("function", "tool"):
        fields.note_ignored(f"tool_choice of type {kind}")
        return _Choice()
    name = _named(choice)
    if not name:
        raise choice.missing("function.name", "the name of a tool")
    return _Choice(REQUIRED, name, "tool_choice.function.name", takes_one=takes_one)


def _named(given: Fields) -> str | None:
    function = given.any("function")
    if isinstance(function, str):
        return function
    return (given.table("function") or given).text("name")


def _tool(fields: Fields, item: Any, place: str) -> dict[str, Any] | None:
    """Read a tool; None for one of a kind that a provider runs."""
    tool = fields.item(item, place)
    kind = tool.text("type", "function")
    # as Anthropic and MCP have it
    is_described = tool.has("input_schema") or tool.has("inputSchema")
    if kind != "function" and not (kind == "custom" and is_described):
        fields.note_ignored(f"tools of type {kind}")
        return None
    function = tool.table("function")
    if function is None and not tool.has("name"):
        raise tool.missing("function", "an object with a name")
    function = function or tool  # as /v1/responses has it
    name = function.required(function.text("name"), "name", _NAME_RULE)
    if not NAME.fullmatch(name):
        raise function.wrong("name", _NAME_RULE)
    description = function.any("description") or ""
    if not isinstance(description, str):
        raise function.wrong("description", "a string")
    parameters = _parameters(function, name)
    for ignored in ("strict", "title", "annotations", "outputSchema", "output_schema"):
        function.any(ignored)
    function.ignore_rest()
    tool.ignore_rest()
    read = {"name": name, "description": description, "parameters": parameters}
    return {
        "type": "function",
        "function": json.loads(whole_text(json.dumps(read, ensure_ascii=False))),
    }


def _parameters(function: Fields, name: str) -> dict[str, Any]:
    """Read the schema of what a tool takes, as templates can print it.

    What is no schema in it is left out: whoever asks has it from somebody else.
    """
    schemas = {key: function.any(key) for key in ("parameters", "input_schema", "inputSchema")}
    field, given = next(
        ((key, value) for key, value in schemas.items() if value not in (None, "", [])), ("", {})
    )
    if isinstance(given, str):
        try:
            given = load_json(given)
        except ValueError:
            given = None
    if not isinstance(given, dict):
        raise function.wrong(field, f'a JSON schema of type "object" for the tool "{name}"')
    if not field:
        schema = {"type": "object", "properties": {}}
    else:
        schema = dict(given)
    if is_deep(schema):
        function.note_ignored(f"parameters of tool {name} beyond a depth of {MOST_DEPTH}")
        schema = _cut(schema, MOST_DEPTH - 2)
    for key, kind in (("properties", dict), ("required", list)):
        value = schema.get(key)
        if key in schema and not isinstance(value, kind):
            if value:
                function.note_ignored(f"{key} of tool {name}")
            del schema[key]
    if "required" in schema:
        schema["required"] = [item for item in schema["required"] if isinstance(item, str)]
    return schema


def _cut(value: Any, depth: int) -> Any:
    """Return a value of JSON without what is nested deeper."""
    if isinstance(value, dict):
        if depth:
            return {key: _cut(item, depth - 1) for key, item in value.items()}
        return {}
    if isinstance(value, list):
        if depth:
            return [_cut(item, depth - 1) for item in value]
        return []
    return value


def _call(message: Fields, item: Any, place: str) -> ToolCall:
    given = message.item(item, place)
    given.text("type")
    given.any("index")  # of a stream whose pieces a client put together
    call_id = read_id(given, "id")
    call = read_call(given.table("function") or given, call_id)
    given.ignore_rest()
    return call


def read_call(function: Fields, call_id: str) -> ToolCall:
    """Read a call of the history, in the nearest form that a template can print.

    It cannot be undone.

    Raises:
        ApiError: its name is no text.
    """
    given = function.any("name")
    if given is not None and not isinstance(given, str):
        raise function.wrong("name", "a string")
    name = _NO_NAME_CHARS.sub("_", given or "")[:MOST_NAME_CHARS]
    arguments = whole_text(_arguments(function.any("arguments")))
    function.any("parsed_arguments")
    function.ignore_rest()
    return ToolCall(name or _NAMELESS, arguments, call_id)


def _arguments(given: Any) -> str:
    """Return the arguments of a call as the JSON of an object.

    A value that is no object becomes one in an object.
    """
    value = given
    if isinstance(given, str):
        try:
            if given.strip():
                value = load_json(given)
            else:
                value = {}
        except ValueError:
            value = given
    if value in (None, []):
        value = {}
    if is_deep(value):
        value = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict):
        value = {"arguments": value}
    return json.dumps(value, ensure_ascii=False)

"""Messages and tools of a request: who said what, and what the model may call."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from app.conversations.conversation import ASSISTANT, SYSTEM, TOOL, USER, PromptMessage
from app.conversations.pictures import MARK, Picture
from app.server.api_error import ApiError, invalid, unsupported
from app.server.fields import Fields, describe, replace_surrogates
from app.server.picture_fields import IMAGE_TYPES, read_image_part, read_images
from app.text.record import record
from engine.prompt.tools.calls import (
    MAX_DEPTH,
    MAX_NAME_CHARS,
    NAME,
    CallResult,
    ToolCall,
    is_deep,
    load_json,
)

MAX_MESSAGES = 100_000
MAX_TOOLS = 128
MAX_TOOLS_CHARS = 1 << 18
"""Limit on the JSON of all tools together."""
_NAME_RULE = f"1 to {MAX_NAME_CHARS} letters, digits, _, - or ."
_INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9_.-]+")
_IGNORED_IN_TOOLS = (
    "strict", "title", "annotations", "outputSchema", "output_schema", "cache_control",
    "defer_loading",
)  # fmt: skip
"""Fields of tools without influence on the reply."""
NAMESPACE = "namespace"
"""Type of an item of ``tools`` that holds other tools."""
NAMESPACE_MARK = "__"
"""Text between the namespace and the name of a tool."""
_UNNAMED_TOOL = "unknown"
"""Name for calls whose name is empty."""
AUTO = "auto"
NONE = "none"
REQUIRED = "required"
ANY = "any"
_ROLES = {
    "system": SYSTEM, "developer": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL,
    "function": TOOL,
}  # fmt: skip
_CONTENT = "a string or a list of text parts"
_TEXT_FIELDS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Field that holds the text of a content part, by the type of the part."""
_THOUGHT_TYPES = ("thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text")
"""Types of content parts that hold thoughts."""
_REPLY_FIELDS = (
    "name", "refusal", "reasoning", "reasoning_content", "annotations", "audio", "parsed",
    "function_call", "tool_calls", "thinking", "tool_name", "prefix",
)  # fmt: skip
"""Fields of replies that clients send back without effect. The session has the tokens of
thoughts."""


@record
class Tools:
    """Tools that the model knows."""

    definitions: tuple[dict[str, Any], ...]
    """Definitions in the form that templates expect."""
    required_names: tuple[str, ...] = ()
    """Names of tools, one of which must be called; empty if the model may choose."""
    single_call: bool = False
    """Whether a reply has at most one call."""
    may_call: bool = True
    """Whether the model may call tools. Otherwise the prompt only lists them, so that it stays the
    same and the cache remains valid."""
    namespaces: Mapping[str, str] = field(default_factory=dict)
    """Namespaces of tools, by the names under which the model knows these (``joined_name``)."""


def read_messages(fields: Fields) -> list[PromptMessage]:
    """Return the messages of a request.

    Raises:
        ApiError: A message is wrong.
    """
    items = fields.array("messages", MAX_MESSAGES)
    if not items:
        raise fields.missing_value("messages", "a list of messages that ends with the user's")
    return [
        read_message(fields.array_item(item, f"messages[{index}]"))
        for index, item in enumerate(items)
    ]


def read_message(message: Fields) -> PromptMessage:
    """Read one message.

    Raises:
        ApiError: The message is wrong or not a text.
    """
    role_name = message.text("role")
    if not role_name:
        raise message.missing_value("role", "user")
    if role_name not in _ROLES:
        raise message.wrong_value("role", f"one of {', '.join(_ROLES)}")
    role = _ROLES[role_name]
    pictures: list[Picture] = []
    if role == USER:
        read_images(message, pictures)
    elif message.value("images"):
        raise unsupported(message.path("images"), "is not supported: only a user shows images")

    calls: tuple[ToolCall, ...] = ()
    if role == ASSISTANT:
        calls = _read_calls(message)
    results: tuple[CallResult, ...] = ()
    if role == TOOL:
        results = (CallResult("", "", read_id(message, "tool_call_id")),)
    for name in _REPLY_FIELDS:
        message.mark_read(name)

    has_content = message.is_present("content") or bool(pictures)
    if role == USER and not has_content:
        raise message.missing_value("content", _CONTENT)
    text = MARK * len(pictures) + read_text(
        message, "content", role == TOOL, pictures if role == USER else None
    )
    if not text and role == ASSISTANT and not calls:
        text = message.text("refusal") or ""
    message.ignore_rest()
    return PromptMessage(role, text, calls, results, pictures=tuple(pictures))


def _read_calls(message: Fields) -> tuple[ToolCall, ...]:
    path = message.path("tool_calls")
    calls = tuple(
        _read_call_item(message, item, f"{path}[{index}]")
        for index, item in enumerate(message.array("tool_calls", MAX_TOOLS) or ())
        if item is not None
    )
    function_call = message.nested("function_call")  # an older field for a single call
    if function_call is not None and not calls:
        return (read_call(function_call, ""),)
    return calls


def read_id(item: Fields, name: str) -> str:
    """Return the id of a call, which some clients send as a number."""
    call_id = item.value(name)
    if call_id is None:
        return ""
    if not isinstance(call_id, (str, int)):
        raise item.wrong_value(name, "a string")
    return str(call_id)


def read_text(
    message: Fields,
    name: str,
    is_result: bool = False,
    pictures: list[Picture] | None = None,
) -> str:
    """Return the text of a message, which is a string or a list of parts.

    Args:
        message: Fields of the message.
        name: Field with the text.
        is_result: Whether the text is the result of a tool, which may be any JSON value. Images in
            a result are left out.
        pictures: List that pictures are added to, with a mark in the text for each; None if the
            message cannot have any.

    Raises:
        ApiError: The field is wrong.
    """
    return replace_surrogates(_read_text(message, name, is_result, pictures))


def _read_text(message: Fields, name: str, is_result: bool, pictures: list[Picture] | None) -> str:
    value = message.value(name)
    if value is None or isinstance(value, str):
        return value or ""

    if isinstance(value, dict):
        if "type" not in value and not isinstance(value.get("text"), str):
            return json.dumps(value, ensure_ascii=False)
        value = [value]
    if not isinstance(value, list):
        if not is_result:
            raise message.wrong_value(name, _CONTENT)
        return json.dumps(value)

    if is_result and not all(_is_content_part(item) for item in value):
        return json.dumps(value, ensure_ascii=False)
    return "".join(
        _read_part(message, item, f"{message.path(name)}[{index}]", is_result, pictures)
        for index, item in enumerate(value)
    )


def _is_content_part(item: Any) -> bool:
    """Whether an item of a tool's result is a part of a message, and not data of its own."""
    return isinstance(item, str) or (isinstance(item, dict) and ("type" in item or "text" in item))


def _read_part(
    message: Fields, item: Any, path: str, is_result: bool, pictures: list[Picture] | None
) -> str:
    """Return the text of a content part, a mark for a picture; "" for parts that are left out."""
    if isinstance(item, str):
        return item
    content_part = message.array_item(item, path)
    part_type = content_part.text("type", "text")
    if part_type in _THOUGHT_TYPES:
        return ""
    if part_type in IMAGE_TYPES and pictures is not None:
        read_image_part(content_part, pictures)
        return MARK
    if part_type not in _TEXT_FIELDS:
        if is_result:
            message.ignore(f"{part_type} in the result of a tool")
            return ""
        raise unsupported(
            content_part.path("type"),
            f"is {describe(part_type)}: only text is supported, and images of a user",
        )

    text_field = _TEXT_FIELDS[part_type]
    text = content_part.value(text_field)
    if text is not None and not isinstance(text, str):
        raise content_part.wrong_value(text_field, "a string")
    for name in ("annotations", "logprobs"):
        content_part.value(name)
    content_part.ignore_rest()
    return text or ""


def read_tools(fields: Fields) -> Tools | None:
    """Read ``tools``, ``tool_choice`` and ``parallel_tool_calls``.

    Returns:
        The tools; None if there are none.

    Raises:
        ApiError: A field is wrong.
    """
    items = fields.array("tools", MAX_TOOLS) or ()
    definitions: dict[str, dict[str, Any]] = {}
    namespaces: dict[str, str] = {}
    for tool, namespace in _tools_with_namespaces(fields, items):
        definition = _read_definition(fields, tool, namespace)
        if definition is None:
            continue
        name = definition["function"]["name"]
        if name in definitions:
            fields.ignore(f"a second tool {name}")
            continue
        definitions[name] = definition
        if namespace:
            namespaces[name] = namespace
    if len(json.dumps(list(definitions.values()))) > MAX_TOOLS_CHARS:
        raise ApiError(
            f"tools are longer than {MAX_TOOLS_CHARS} characters", param="tools", code="too_long"
        )

    choice = _read_choice(fields)
    single_call = choice.single_call or not fields.flag("parallel_tool_calls", True)
    if not items and choice.mode not in (AUTO, NONE):
        raise invalid("tool_choice", "needs tools")
    if choice.name and choice.name not in definitions:
        raise invalid(choice.path, f'is "{choice.name}", which is not among the tools')
    if choice.allowed_names is not None:
        definitions = {
            name: definition
            for name, definition in definitions.items()
            if name in choice.allowed_names
        }
    if not definitions:
        if choice.mode == REQUIRED:
            raise invalid("tool_choice", "needs a tool that this server can offer to the model")
        return None

    if choice.mode == NONE:
        return Tools(tuple(definitions.values()), may_call=False, namespaces=namespaces)
    required_names: tuple[str, ...] = ()
    if choice.name:
        required_names = (choice.name,)
    elif choice.mode == REQUIRED:
        required_names = tuple(definitions)
    return Tools(
        tuple(definitions.values()),
        required_names,
        single_call or len(required_names) > 0,
        namespaces=namespaces,
    )


def _tools_with_namespaces(fields: Fields, items: Sequence[Any]) -> Iterator[tuple[Fields, str]]:
    """Yield the fields of each tool with its namespace, which is "" outside of namespaces."""
    for index, item in enumerate(items):
        tool = fields.array_item(item, f"tools[{index}]")
        if tool.text("type") != NAMESPACE:
            yield tool, ""
            continue

        namespace = tool.required(tool.text("name"), "name", _NAME_RULE)
        if not NAME.fullmatch(namespace):
            raise tool.wrong_value("name", _NAME_RULE)
        tool.text("description")
        nested_items = tool.array("tools", MAX_TOOLS) or ()
        tool.ignore_rest()
        for nested_index, nested_item in enumerate(nested_items):
            path = f"{tool.path('tools')}[{nested_index}]"
            yield fields.array_item(nested_item, path), namespace


def joined_name(namespace: str, name: str) -> str:
    """Return the name under which the model knows a tool."""
    if namespace:
        return f"{namespace}{NAMESPACE_MARK}{name}"
    return name


@record
class _ToolChoice:
    """A choice of tools."""

    mode: str = AUTO
    """``auto``, ``none`` or ``required``."""
    name: str = ""
    """Name of the tool to call; "" for any."""
    path: str = "tool_choice"
    """Path of the name in the request."""
    allowed_names: tuple[str, ...] | None = None
    """Names of the tools to choose from; None for all."""
    single_call: bool = False
    """Whether a reply has at most one call."""


def _read_choice(fields: Fields) -> _ToolChoice:
    """Read ``tool_choice`` in any dialect."""
    value = fields.value("tool_choice")
    if value is None or value == "":
        return _ToolChoice()
    if not isinstance(value, dict):
        word = fields.text("tool_choice") or AUTO
        mode = REQUIRED if word == ANY else word
        if mode in (AUTO, NONE, REQUIRED):
            return _ToolChoice(mode)
        return _ToolChoice(REQUIRED, word)

    choice = fields.array_item(value, "tool_choice")
    single_call = choice.flag("disable_parallel_tool_use")
    choice_type = choice.text("type", "function")
    if choice_type == "allowed_tools":
        return _read_allowed_tools(choice, single_call)
    if choice_type in (AUTO, NONE, REQUIRED, ANY):
        mode = REQUIRED if choice_type == ANY else str(choice_type)
        return _ToolChoice(mode, single_call=single_call)
    if choice_type not in ("function", "tool"):
        fields.ignore(f"tool_choice of type {choice_type}")
        return _ToolChoice()

    name = _read_function_name(choice)
    if not name:
        raise choice.missing_value("function.name", "the name of a tool")
    return _ToolChoice(REQUIRED, name, "tool_choice.function.name", single_call=single_call)


def _read_allowed_tools(choice: Fields, single_call: bool) -> _ToolChoice:
    allowed = choice.nested("allowed_tools") or choice
    mode = allowed.choice("mode", AUTO, REQUIRED, ANY) or AUTO
    if mode == ANY:
        mode = REQUIRED
    path = allowed.path("tools")
    names: list[str] = []
    for index, item in enumerate(allowed.array("tools", MAX_TOOLS) or ()):
        if isinstance(item, str):
            name: str | None = item
        else:
            name = _read_function_name(allowed.array_item(item, f"{path}[{index}]"))
        if name:
            names.append(name)
    return _ToolChoice(mode, allowed_names=tuple(names), single_call=single_call)


def _read_function_name(choice: Fields) -> str | None:
    function = choice.value("function")
    if isinstance(function, str):
        return function
    name = (choice.nested("function") or choice).text("name")
    if name:
        return joined_name(choice.text("namespace") or "", name)
    return None


def _read_definition(fields: Fields, tool: Fields, namespace: str) -> dict[str, Any] | None:
    """Read the definition of a tool; None for a type of tool that a provider runs."""
    tool_type = tool.text("type", "function")
    # Fields of Anthropic and MCP.
    has_schema = tool.has("input_schema") or tool.has("inputSchema")
    if tool_type != "function" and not (tool_type == "custom" and has_schema):
        fields.ignore(f"tools of type {tool_type}")
        return None

    function = tool.nested("function")
    if function is None:
        if not tool.has("name"):
            raise tool.missing_value("function", "an object with a name")
        function = tool  # /v1/responses has no nested object.
    name = function.required(function.text("name"), "name", _NAME_RULE)
    if not NAME.fullmatch(joined_name(namespace, name)):
        raise function.wrong_value("name", _NAME_RULE)
    name = joined_name(namespace, name)
    description = function.value("description") or ""
    if not isinstance(description, str):
        raise function.wrong_value("description", "a string")
    parameters = _read_parameters(function, name)

    for ignored in _IGNORED_IN_TOOLS:
        function.mark_read(ignored)
    function.ignore_rest()
    tool.ignore_rest()
    definition = {"name": name, "description": description, "parameters": parameters}
    text = replace_surrogates(json.dumps(definition, ensure_ascii=False))
    return {"type": "function", "function": json.loads(text)}


def _read_parameters(function: Fields, name: str) -> dict[str, Any]:
    """Read the schema of a tool's arguments in a form that templates can print.

    Invalid parts of the schema are left out: a client usually has them from another program.
    """
    schemas = {key: function.value(key) for key in ("parameters", "input_schema", "inputSchema")}
    field, value = next(
        ((key, value) for key, value in schemas.items() if value not in (None, "", [])), ("", {})
    )
    if isinstance(value, str):
        try:
            value = load_json(value)
        except ValueError:
            value = None
    if not isinstance(value, dict):
        raise function.wrong_value(field, f'a JSON schema of type "object" for the tool "{name}"')
    if not field:
        return {"type": "object", "properties": {}}

    schema = dict(value)
    if is_deep(schema):
        function.ignore(f"parameters of tool {name} beyond a depth of {MAX_DEPTH}")
        schema = _cut_depth(schema, MAX_DEPTH - 2)
    for key, expected_type in (("properties", dict), ("required", list)):
        if key in schema and not isinstance(schema[key], expected_type):
            if schema[key]:
                function.ignore(f"{key} of tool {name}")
            del schema[key]
    if "required" in schema:
        schema["required"] = [item for item in schema["required"] if isinstance(item, str)]
    return schema


def _cut_depth(value: Any, depth: int) -> Any:
    """Return a JSON value without the contents of deeper levels."""
    if isinstance(value, dict):
        if depth == 0:
            return {}
        return {key: _cut_depth(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        if depth == 0:
            return []
        return [_cut_depth(item, depth - 1) for item in value]
    return value


def _read_call_item(message: Fields, item: Any, path: str) -> ToolCall:
    fields = message.array_item(item, path)
    fields.text("type")
    fields.mark_read("index")  # Clients that join the pieces of a stream leave it in.
    call_id = read_id(fields, "id")
    call = read_call(fields.nested("function") or fields, call_id)
    fields.ignore_rest()
    return call


def read_call(function: Fields, call_id: str) -> ToolCall:
    """Read an earlier call. Its name and arguments are changed where templates could not print
    them.

    Raises:
        ApiError: The name is not a string.
    """
    name = function.value("name")
    if name is not None and not isinstance(name, str):
        raise function.wrong_value("name", "a string")
    name = _INVALID_NAME_CHARS.sub("_", name or "")[:MAX_NAME_CHARS]
    arguments = replace_surrogates(_encode_arguments(function.value("arguments")))
    function.value("parsed_arguments")
    function.ignore_rest()
    return ToolCall(name or _UNNAMED_TOOL, arguments, call_id)


def _encode_arguments(arguments: Any) -> str:
    """Return arguments as a JSON object. A value of another type becomes a field of an object."""
    value = arguments
    if isinstance(arguments, str):
        try:
            value = load_json(arguments) if arguments.strip() else {}
        except ValueError:
            value = arguments
    if value in (None, []):
        value = {}
    if is_deep(value):
        value = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict):
        value = {"arguments": value}
    return json.dumps(value, ensure_ascii=False)

"""Tools that a server lists, checked, and results of calls as text. Everything in them is
untrusted."""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from app.text.clean_text import clean_line, clean_text
from app.text.figures import size
from app.text.record import record
from engine.prompt.tools.calls import NAME, is_deep

MAX_TOOLS = 64
MAX_DESCRIPTION_CHARS = 2000
MAX_SCHEMA_CHARS = 1 << 16
MAX_TOTAL_CHARS = 1 << 18
"""Limit on the schemas and descriptions of one server."""
MAX_NAME_CHARS = 128
_MAX_LEFT_OUT = 1000
"""Limit on the lines about tools that cannot be used."""
_SCHEMA_TABLES = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value is an object of named schemas."""
_TEXT_TYPES = re.compile(
    r"text/.*|application/(?:.*\+)?(?:json|xml|yaml|x-yaml|toml|javascript)\b.*"
)
"""MIME types of text."""
_MODEL_NAME_CHARS = 64
_LINE_CHARS = 200


@record
class ServedTool:
    """A checked tool of a server."""

    name: str
    """Name for models."""
    description: str
    parameters: dict[str, Any]
    server_name: str = ""
    """The server's name of the tool if models cannot use it; "" if it is the same."""

    @property
    def definition(self) -> dict[str, Any]:
        """Definition for chat templates."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}


class ToolList:
    """The usable tools of a server.

    Attributes:
        tools: The tools by name.
        left_out: Lines about tools that cannot be used, each with a name and the reason.
    """

    def __init__(self) -> None:
        self.tools: dict[str, ServedTool] = {}
        self.left_out: list[str] = []
        self._n_chars = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room for further lines about tools that cannot be used."""
        return len(self.left_out) >= _MAX_LEFT_OUT

    def add(self, items: Any) -> None:
        """Add tools in the server's format.

        A tool that is listed again unchanged, as on a repeated page, is ignored.
        """
        if not isinstance(items, list):
            return
        for item in items:
            tool = parse_tool(item)
            if isinstance(tool, str):
                self.leave_out(_item_name(item), tool)
                continue
            if self.tools.get(tool.name) == tool:
                continue
            problem = self._limit_problem(tool)
            if problem:
                self.leave_out(_item_name(item), problem)
            else:
                self.tools[tool.name] = tool

    def leave_out(self, name: str, reason: str) -> None:
        """Record a tool that cannot be used."""
        line = f"{name}: {reason}"
        if not self.is_full and line not in self.left_out:
            self.left_out.append(line)

    def _limit_problem(self, tool: ServedTool) -> str:
        """Return the limit that a tool exceeds; "" if it fits."""
        n_chars = self._n_chars + len(tool.description) + len(json.dumps(tool.parameters))
        if tool.name in self.tools:
            return "another tool with this name comes first"
        if len(self.tools) >= MAX_TOOLS:
            return f"more than {MAX_TOOLS} tools"
        if n_chars > MAX_TOTAL_CHARS:
            return f"the descriptions of all tools are larger than {size(MAX_TOTAL_CHARS)}"
        self._n_chars = n_chars
        return ""


def _item_name(item: Any) -> str:
    name = item.get("name") if isinstance(item, dict) else None
    if isinstance(name, str):
        return clean_line(name, 40)
    return "(no name)"


def parse_tool(item: Any) -> ServedTool | str:
    """Return a tool from the server's description, or the reason why it cannot be used."""
    if not isinstance(item, dict):
        return "is not a description of a tool"
    name = item.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
        return "its name is not valid"

    schema = item.get("inputSchema")
    if schema is None or schema == []:  # PHP writes an empty object as [].
        schema = {}
    if not isinstance(schema, dict):
        return "its parameters have no valid schema"
    if is_deep(schema):
        return "its schema is nested too deeply"
    if len(json.dumps(schema)) > MAX_SCHEMA_CHARS:
        return f"its schema is larger than {size(MAX_SCHEMA_CHARS)}"
    schema_type = schema.get("type") or "object"
    is_object = schema_type == "object" or (
        isinstance(schema_type, list) and "object" in schema_type
    )
    properties = schema.get("properties") or {}
    if not is_object or not isinstance(properties, dict):
        return "its schema does not describe an object"

    texts = [item.get("description"), item.get("title")]
    description = next((text for text in texts if text and isinstance(text, str)), "")
    tool_name = model_name(name)
    return ServedTool(
        tool_name,
        clean_text(description[:MAX_DESCRIPTION_CHARS]),
        _plain_schema({**schema, "type": "object", "properties": properties}),
        server_name="" if tool_name == name else name,
    )


def _plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that templates can print: descriptions of properties are objects, and
    ``required`` is a list."""
    plain = dict(schema)
    for key in _SCHEMA_TABLES:
        if key not in plain:
            continue
        table = plain[key]
        plain[key] = {}
        if isinstance(table, dict):
            plain[key] = {
                name: _plain_schema(rule) if isinstance(rule, dict) else {}
                for name, rule in table.items()
            }
    for key in ("items", "additionalProperties"):
        if isinstance(plain.get(key), dict):
            plain[key] = _plain_schema(plain[key])
        elif plain.get(key) in ([], None):
            plain.pop(key, None)
    if not isinstance(plain.get("required", []), list):
        del plain["required"]
    return plain


def model_name(name: str) -> str:
    """Return the name of a tool for models: few characters, and short enough for every server."""
    if len(name) <= _MODEL_NAME_CHARS and NAME.fullmatch(name):
        return name
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    if len(plain) <= _MODEL_NAME_CHARS:
        return plain
    from hashlib import sha256  # Imported late: the first frame would wait for it.

    digest = sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{plain[: _MODEL_NAME_CHARS - 9]}_{digest}"


# ---- results


def result_text(result: Mapping[str, Any]) -> str:
    """Return the result of a call as text for the model, whatever types of content it has."""
    content = result.get("content")
    if content is None:
        items = []
    elif isinstance(content, list):
        items = content
    else:
        items = [content]
    texts = [_part_text(item) for item in items]

    structured = result.get("structuredContent", result.get("toolResult"))
    if is_deep(structured):
        texts.append("[structured content: nested too deeply]")
    elif structured is not None and not any(_is_same_json(item, structured) for item in items):
        texts.append(json.dumps(structured, ensure_ascii=False))
    return "\n".join(texts)


def _part_text(item: Any) -> str:
    if isinstance(item, str):
        return item
    part_type = item.get("type") if isinstance(item, dict) else None
    if part_type == "text" and isinstance(item.get("text"), str):
        return str(item["text"])
    if part_type in ("image", "audio"):
        return f"[{part_type}: {_describe_data(item, 'data')}; you cannot see or hear it]"
    if part_type == "resource_link":
        names = ("name", "title", "uri", "mimeType", "description")
        description = ", ".join(filter(None, (_line(item.get(name)) for name in names)))
        return f"[link to a resource: {description or 'nothing'}]"
    if part_type == "resource" and isinstance(item.get("resource"), dict):
        return _describe_resource(item["resource"])
    return f"[{clean_line(str(part_type), 20)}: left out]"


def _describe_resource(resource: Mapping[str, Any]) -> str:
    uri = _line(resource.get("uri")) or "without an address"
    text = _resource_text(resource)
    if text is None:
        return f"[resource {uri}: {_describe_data(resource, 'blob')}; it is not text]"
    mime_type = _line(resource.get("mimeType"))
    if mime_type:
        return f"[resource {uri}, {mime_type}]\n{text}"
    return f"[resource {uri}]\n{text}"


def _resource_text(resource: Mapping[str, Any]) -> str | None:
    """Return the text of a resource, which may be in base64; None for other data."""
    text = resource.get("text")
    if isinstance(text, str):
        return text
    blob = resource.get("blob")
    mime_type = _line(resource.get("mimeType")).lower()
    if not isinstance(blob, str) or not _TEXT_TYPES.fullmatch(mime_type):
        return None
    try:
        return b64decode("".join(blob.split()), validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def _describe_data(item: Mapping[str, Any], name: str) -> str:
    """Describe data in base64, such as "image/png, 1.2K"."""
    data = item.get(name)
    n_bytes = len(data) * 3 // 4 if isinstance(data, str) else 0
    return f"{_line(item.get('mimeType')) or 'of unknown type'}, {size(n_bytes)}"


def _line(value: Any) -> str:
    if isinstance(value, str):
        return clean_line(value, _LINE_CHARS)
    return ""


def _is_same_json(item: Any, value: Any) -> bool:
    """Whether a content item is the JSON of a value, as the protocol recommends."""
    try:
        return isinstance(item, dict) and json.loads(item.get("text", "")) == value
    except (TypeError, ValueError, RecursionError):
        return False

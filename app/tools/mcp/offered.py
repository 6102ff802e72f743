"""What a server of tools offers and answers, checked, and put in words: everything in it is
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

MOST_TOOLS = 64
MOST_DESCRIPTION_CHARS = 2000
MOST_SCHEMA_CHARS = 1 << 16
MOST_OFFERED_CHARS = 1 << 18
"""Of the schemas and descriptions of one server."""
MOST_NAME_CHARS = 128
_MOST_LEFT_OUT = 1000
"""Limit on the lines on tools that cannot be used."""
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value is an object of schemas by their names."""
_TEXT_KINDS = re.compile(
    r"text/.*|application/(?:.*\+)?(?:json|xml|yaml|x-yaml|toml|javascript)\b.*"
)
"""Kinds of data that are text, by their MIME types."""
_MODEL_NAME_CHARS = 64
_SHOWN_CHARS = 200


@record
class ServedTool:
    """A tool of a server, checked."""

    name: str
    """As models call it."""
    description: str
    parameters: dict[str, Any]
    own_name: str = ""
    """The server's own, where models cannot call it so."""

    @property
    def for_template(self) -> dict[str, Any]:
        """As chat templates take it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}


class UsableTools:
    """The tools of a server that can be used, and a line for each that cannot: its name and the
    reason."""

    def __init__(self) -> None:
        self.tools: dict[str, ServedTool] = {}
        self.left_out: list[str] = []
        self._n_chars = 0

    @property
    def is_full(self) -> bool:
        """Whether no more lines on tools that cannot be used are kept."""
        return len(self.left_out) >= _MOST_LEFT_OUT

    def take(self, items: Any) -> None:
        """Take tools as a server lists them.

        A tool that comes again unchanged, as on a repeated page, is taken once.
        """
        for item in items if isinstance(items, list) else []:
            tool = served_tool(item)
            if isinstance(tool, ServedTool) and self.tools.get(tool.name) == tool:
                continue
            if isinstance(tool, str):
                reason = tool
            else:
                reason = self._no_room_for(tool)
            if reason:
                if isinstance(item, dict):
                    name = item.get("name")
                else:
                    name = None
                self.leave_out(
                    clean_line(name, 40) if isinstance(name, str) else "(no name)", reason
                )
            elif isinstance(tool, ServedTool):
                self.tools[tool.name] = tool

    def leave_out(self, name: str, reason: str) -> None:
        """Note what cannot be used and why, once."""
        line = f"{name}: {reason}"
        if not self.is_full and line not in self.left_out:
            self.left_out.append(line)

    def _no_room_for(self, tool: ServedTool) -> str:
        n_chars = self._n_chars + len(tool.description) + len(json.dumps(tool.parameters))
        if tool.name in self.tools:
            return "another of this name comes first"
        if len(self.tools) >= MOST_TOOLS:
            return f"more than {MOST_TOOLS} tools"
        if n_chars > MOST_OFFERED_CHARS:
            return f"all tools together are described in more than {size(MOST_OFFERED_CHARS)}"
        self._n_chars = n_chars
        return ""


def served_tool(item: Any) -> ServedTool | str:
    """Return a tool as a server describes it, or the reason why it cannot be used."""
    if not isinstance(item, dict):
        return "is no description of a tool"
    name = item.get("name")
    schema = item.get("inputSchema")
    if not isinstance(name, str) or not 0 < len(name) <= MOST_NAME_CHARS or not name.isprintable():
        return "its name is none"
    about = next(
        (
            text
            for text in (item.get("description"), item.get("title"))
            if text and isinstance(text, str)
        ),
        "",
    )
    # PHP writes an empty object as []
    if schema is None or schema == []:
        schema = {}
    if not isinstance(schema, dict):
        return "its parameters are described by no schema"
    if is_deep(schema):
        return "its schema is nested too deeply"
    if len(json.dumps(schema)) > MOST_SCHEMA_CHARS:
        return f"its schema is larger than {size(MOST_SCHEMA_CHARS)}"
    kind = schema.get("type") or "object"
    properties = schema.get("properties") or {}
    if not isinstance(properties, dict) or (
        kind != "object" and not (isinstance(kind, list) and "object" in kind)
    ):
        return "its schema is of no object"
    called = model_name(name)
    parameters = _plain_schema({**schema, "type": "object", "properties": properties})
    if called != name:
        own_name = name
    else:
        own_name = ""
    return ServedTool(called, clean_text(about[:MOST_DESCRIPTION_CHARS]), parameters, own_name)


def _plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema as templates can take it.

    What describes a property is an object, and ``required`` a list.
    """
    plain = dict(schema)
    for key in _NAMED_SCHEMAS:
        named = plain.get(key)
        if isinstance(named, dict):
            plain[key] = {
                name: _plain_schema(rule) if isinstance(rule, dict) else {}
                for name, rule in named.items()
            }
        elif key in plain:
            plain[key] = {}
    for key in ("items", "additionalProperties"):
        if isinstance(plain.get(key), dict):
            plain[key] = _plain_schema(plain[key])
        elif plain.get(key) in ([], None):
            plain.pop(key, None)
    if not isinstance(plain.get("required", []), list):
        del plain["required"]
    return plain


def model_name(name: str) -> str:
    """Return the name of a tool as models call it: of few characters, and short for any server."""
    if len(name) <= _MODEL_NAME_CHARS and NAME.fullmatch(name):
        return name
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    if len(plain) <= _MODEL_NAME_CHARS:
        return plain
    from hashlib import sha256  # not with the module: the first frame would wait for it

    mark = sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{plain[: _MODEL_NAME_CHARS - 9]}_{mark}"


# ---- results


def in_words(result: Mapping[str, Any]) -> str:
    """Return what a call gave, as the model reads it: all kinds of content that the protocol
    has."""
    content = result.get("content")
    if isinstance(content, list):
        parts = content
    elif content is None:
        parts = []
    else:
        parts = [content]
    words = [_part(part) for part in parts]
    structured = result.get("structuredContent", result.get("toolResult"))
    if is_deep(structured):
        words.append("[structured content: nested too deeply]")
    elif structured is not None and not any(_says(part, structured) for part in parts):
        words.append(json.dumps(structured, ensure_ascii=False))
    return "\n".join(words)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        kind = part.get("type")
    else:
        kind = None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in ("image", "audio"):
        return f"[{kind}: {_data(part, 'data')}; you cannot see or hear it]"
    if kind == "resource_link":
        about = [
            _line(part.get(name)) for name in ("name", "title", "uri", "mimeType", "description")
        ]
        return f"[a link to a resource: {', '.join(filter(None, about)) or 'nothing'}]"
    if kind == "resource" and isinstance(part.get("resource"), dict):
        resource = part["resource"]
        uri = _line(resource.get("uri")) or "without an address"
        text = _resource_text(resource)
        if text is not None:
            mime = _line(resource.get("mimeType"))
            return f"[resource {uri}{', ' if mime else ''}{mime}]\n{text}"
        return f"[resource {uri}: {_data(resource, 'blob')}; it is no text]"
    return f"[{clean_line(str(kind), 20)}: left out]"


def _resource_text(resource: Mapping[str, Any]) -> str | None:
    """Return the text of a resource, which may be in base64; None for data of another kind."""
    text = resource.get("text")
    if isinstance(text, str):
        return text
    blob = resource.get("blob")
    if not isinstance(blob, str) or not _TEXT_KINDS.fullmatch(
        _line(resource.get("mimeType")).lower()
    ):
        return None
    try:
        return b64decode("".join(blob.split()), validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def _data(part: Mapping[str, Any], name: str) -> str:
    """Describe data in base64: "image/png, 1.2K"."""
    data = part.get(name)
    if isinstance(data, str):
        n_bytes = len(data) * 3 // 4
    else:
        n_bytes = 0
    return f"{_line(part.get('mimeType')) or 'of an unknown kind'}, {size(n_bytes)}"


def _line(value: Any) -> str:
    if isinstance(value, str):
        return clean_line(value, _SHOWN_CHARS)
    return ""


def _says(part: Any, value: Any) -> bool:
    """Whether a part of the content is the same value as JSON, as the protocol recommends."""
    try:
        return isinstance(part, dict) and json.loads(part.get("text", "")) == value
    except (TypeError, ValueError, RecursionError):
        return False

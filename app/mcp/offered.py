"""What a server of tools offers and answers, checked, and put in words: everything in it is untrusted."""

from __future__ import annotations

import json
import re
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
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class UsableTools:
    """The tools of a server that can be used, and a line for each that cannot: its name and the reason."""

    def __init__(self) -> None:
        self.tools: dict[str, ServedTool] = {}
        self.left_out: list[str] = []
        self._n_chars = 0

    def take(self, items: Any) -> None:
        """Take tools as a server lists them."""
        for item in items if isinstance(items, list) else []:
            tool = served_tool(item)
            reason = tool if isinstance(tool, str) else self._no_room_for(tool)
            if reason:
                name = item.get("name") if isinstance(item, dict) else None
                self.left_out.append(f"{clean_line(name, 40) if isinstance(name, str) else '(no name)'}: {reason}")
            elif isinstance(tool, ServedTool):
                self.tools[tool.name] = tool

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
    name, schema = item.get("name"), item.get("inputSchema")
    if not isinstance(name, str) or not 0 < len(name) <= MOST_NAME_CHARS or not name.isprintable():
        return "its name is none"
    about = next((text for text in (item.get("description"), item.get("title")) if text and isinstance(text, str)), "")
    schema = {} if schema is None else schema
    if not isinstance(schema, dict):
        return "its parameters are described by no schema"
    if is_deep(schema):
        return "its schema is nested too deeply"
    if len(json.dumps(schema)) > MOST_SCHEMA_CHARS:
        return f"its schema is larger than {size(MOST_SCHEMA_CHARS)}"
    kind, properties = schema.get("type") or "object", schema.get("properties") or {}
    if not isinstance(properties, dict) or (kind != "object" and not (isinstance(kind, list) and "object" in kind)):
        return "its schema is of no object"
    called = model_name(name)
    parameters = {**schema, "type": "object", "properties": properties}
    own_name = name if called != name else ""
    return ServedTool(called, clean_text(about[:MOST_DESCRIPTION_CHARS]), parameters, own_name)


def model_name(name: str) -> str:
    """Return the name of a tool as models call it: of few characters, and short."""
    if NAME.fullmatch(name):
        return name
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    if len(plain) <= _MODEL_NAME_CHARS:
        return plain
    from hashlib import sha256  # not with the module: the first frame would wait for it

    mark = sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{plain[: _MODEL_NAME_CHARS - 9]}_{mark}"


# ---- results


def in_words(result: Mapping[str, Any]) -> str:
    """Return what a call gave, as the model reads it: all kinds of content that the protocol has."""
    content = result.get("content")
    parts = content if isinstance(content, list) else [] if content is None else [content]
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
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in ("image", "audio"):
        return f"[{kind}: {_data(part, 'data')}; you cannot see or hear it]"
    if kind == "resource_link":
        about = [_line(part.get(name)) for name in ("name", "title", "uri", "mimeType", "description")]
        return f"[a link to a resource: {', '.join(filter(None, about)) or 'nothing'}]"
    if kind == "resource" and isinstance(part.get("resource"), dict):
        resource = part["resource"]
        uri, text = _line(resource.get("uri")) or "without an address", resource.get("text")
        if isinstance(text, str):
            mime = _line(resource.get("mimeType"))
            return f"[resource {uri}{', ' if mime else ''}{mime}]\n{text}"
        return f"[resource {uri}: {_data(resource, 'blob')}; it is no text]"
    return f"[{clean_line(str(kind), 20)}: left out]"


def _data(part: Mapping[str, Any], name: str) -> str:
    """Describe data in base64: "image/png, 1.2K"."""
    data = part.get(name)
    n_bytes = len(data) * 3 // 4 if isinstance(data, str) else 0
    return f"{_line(part.get('mimeType')) or 'of an unknown kind'}, {size(n_bytes)}"


def _line(value: Any) -> str:
    return clean_line(value, _SHOWN_CHARS) if isinstance(value, str) else ""


def _says(part: Any, value: Any) -> bool:
    """Whether a part of the content is the same value as JSON, as the protocol recommends."""
    try:
        return isinstance(part, dict) and json.loads(part.get("text", "")) == value
    except (TypeError, ValueError, RecursionError):
        return False

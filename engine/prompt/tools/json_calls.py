"""Calls written as JSON: Hermes and Qwen between tags, Llama 3 bare, Mistral after its token."""

from __future__ import annotations

import re

from engine.prompt.tools.calls import ToolCall, call, calls_of, first_json, load_json
from engine.prompt.tools.pythonic import read_call

PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS = "[TOOL_CALLS]"
_BETWEEN = " \t\r\n;,"
_NAMED = re.compile(
    r"\s*([A-Za-z0-9_.-]{1,128})\s*(?:\[CALL_ID\][A-Za-z0-9_-]{0,64}\s*)?\[ARGS\]\s*"
)


_FENCED = re.compile(r"```[a-zA-Z_]*(.*)```", re.DOTALL)
_LAST_TAG = re.compile(r"</?[a-z_|]+>\s*$")

BARE = tuple(
    fence + braces + key
    for fence in ("", "```", "```json")
    for braces in ("{", "{{")
    for key in ('"name"', '"arguments"', '"parameters"', '"function"', '"type"')
)
"""Beginnings of a reply that may be a call without any marker, without their white space: Qwen 2.5
Coder leaves out the tags, and its template shows two braces."""


def read_tagged(region: str) -> list[ToolCall]:
    """Read one or more objects between an opening and a closing tag."""
    return _sequence(_LAST_TAG.sub("", region[region.index(">") + 1 :]))


def read_bare(region: str) -> list[ToolCall]:
    """Read one or more objects that are a whole reply: bare, in a fence, or in double braces."""
    body = _LAST_TAG.sub("", region).strip()
    fenced = _FENCED.fullmatch(body)
    if fenced is not None:
        body = fenced[1].strip()
    if body.startswith("{") and body[1:].lstrip().startswith("{"):
        body = body[1:].removesuffix("}")
    return _sequence(body)


def read_llama(region: str) -> list[ToolCall]:
    """Read objects with a name and parameters, or a call such as ``name.call(a="b")`` after the
    tag."""
    body = region.strip().removeprefix(PYTHON_TAG).strip()
    if body.startswith("{"):
        return _sequence(body)
    found = read_call(body)
    if found is not None:
        return [ToolCall(found.name.removesuffix(".call"), found.arguments)]
    return []


def read_mistral(region: str) -> list[ToolCall]:
    """Read a list of objects after the token, or names and arguments each after a token of its
    own."""
    found: list[ToolCall] = []
    for part in region.split(TOOL_CALLS):
        named = _NAMED.match(part)
        try:
            if named is not None:
                arguments, _ = first_json(part, named.end())
                one = call(named[1], arguments)
                if one is not None:
                    found += [one]
                else:
                    found += []
            elif part.strip():
                value, _ = first_json(part.strip(), 0)
                found += calls_of(value)
        except ValueError:
            continue
    return found


def _sequence(body: str) -> list[ToolCall]:
    """Read objects, or one list of them, that fill the body."""
    found: list[ToolCall] = []
    at = 0
    body = body.strip()
    try:
        while at < len(body):
            value, at = first_json(body, at)
            calls = calls_of(value)
            if not calls:
                return []
            found += calls
            while at < len(body) and body[at] in _BETWEEN:
                at += 1
    except ValueError:
        if not found:
            return _repaired(body)
        return []
    return found


def _repaired(body: str) -> list[ToolCall]:
    """Read an object whose last brace is missing, or one brace too many, as small models write
    them."""
    for mended in (body + "}", body.removesuffix("}")):
        try:
            return calls_of(load_json(mended))
        except ValueError:
            continue
    return []


_HEADER = re.compile(r"to=functions\.([A-Za-z0-9_.-]{1,128})[^{]{0,80}?<\|message\|>\s*")


def read_messages(region: str) -> list[ToolCall]:
    """Read the calls of a reply's messages."""
    found: list[ToolCall] = []
    for header in _HEADER.finditer(region):
        try:
            arguments, _ = first_json(region, header.end())
        except ValueError:
            continue
        one = call(header[1], arguments)
        if one is not None:
            found += [one]
        else:
            found += []
    return found

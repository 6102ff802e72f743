"""Calls written as JSON: between tags (Hermes, Qwen), without markers (Llama 3), or after a token
(Mistral)."""

from __future__ import annotations

import re

from engine.prompt.tools.calls import ToolCall, call, calls_of, first_json, load_json
from engine.prompt.tools.pythonic import read_call

PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS = "[TOOL_CALLS]"
_SEPARATORS = " \t\r\n;,"
_NAMED_CALL = re.compile(
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
"""Beginnings of a reply, without white space, that may be a call without markers. Qwen 2.5 Coder
omits the tags, and its template shows two braces."""


def read_tagged(region: str) -> list[ToolCall]:
    """Read one or more objects between an opening and a closing tag."""
    return _sequence(_LAST_TAG.sub("", region[region.index(">") + 1 :]))


def read_bare(region: str) -> list[ToolCall]:
    """Read one or more objects that are a whole reply: plain, in a fence, or in double braces."""
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
    tool_call = read_call(body)
    if tool_call is not None:
        return [ToolCall(tool_call.name.removesuffix(".call"), tool_call.arguments)]
    return []


def read_mistral(region: str) -> list[ToolCall]:
    """Read a list of objects after the token, or names and arguments after several tokens."""
    calls: list[ToolCall] = []
    for text in region.split(TOOL_CALLS):
        match = _NAMED_CALL.match(text)
        try:
            if match is not None:
                arguments, _ = first_json(text, match.end())
                tool_call = call(match[1], arguments)
                if tool_call is not None:
                    calls.append(tool_call)
            elif text.strip():
                value, _ = first_json(text.strip(), 0)
                calls += calls_of(value)
        except ValueError:
            continue
    return calls


def _sequence(body: str) -> list[ToolCall]:
    """Read the objects, or one list of objects, that fill a text."""
    all_calls: list[ToolCall] = []
    position = 0
    body = body.strip()
    try:
        while position < len(body):
            value, position = first_json(body, position)
            calls = calls_of(value)
            if not calls:
                return []
            all_calls += calls
            while position < len(body) and body[position] in _SEPARATORS:
                position += 1
    except ValueError:
        if not all_calls:
            return _repaired(body)
        return []
    return all_calls


def _repaired(body: str) -> list[ToolCall]:
    """Read an object with a brace too few or too many at its end, as small models write them."""
    for repaired in (body + "}", body.removesuffix("}")):
        try:
            return calls_of(load_json(repaired))
        except ValueError:
            continue
    return []


_HEADER = re.compile(r"to=functions\.([A-Za-z0-9_.-]{1,128})[^{]{0,80}?<\|message\|>\s*")


def read_messages(region: str) -> list[ToolCall]:
    """Read the calls of a reply's messages."""
    calls: list[ToolCall] = []
    for header in _HEADER.finditer(region):
        try:
            arguments, _ = first_json(region, header.end())
        except ValueError:
            continue
        tool_call = call(header[1], arguments)
        if tool_call is not None:
            calls.append(tool_call)
    return calls

"""Calls of gpt-oss: messages to ``functions.NAME`` in the commentary channel."""

from __future__ import annotations

import re

from engine.prompt.tools.calls import ToolCall, call, first_json

_HEADER = re.compile(r"to=functions\.([A-Za-z0-9_.-]{1,64})[^{]{0,80}?<\|message\|>\s*")


def read_messages(region: str) -> list[ToolCall]:
    """Read the calls of a reply's messages."""
    found: list[ToolCall] = []
    for header in _HEADER.finditer(region):
        try:
            arguments, _ = first_json(region, header.end())
        except ValueError:
            continue
        one = call(header[1], arguments)
        found += [one] if one is not None else []
    return found

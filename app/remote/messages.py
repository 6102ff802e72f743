"""A conversation as the API takes it: calls of tools with their results as messages of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.conversations.conversation import TOOL, Said
from engine.prompt.tools.calls import ToolCall


def messages_of(said: Sequence[Said]) -> list[dict[str, Any]]:
    """Return the messages of a request."""
    messages: list[dict[str, Any]] = []
    called = False
    for one in said:
        if one.role == TOOL and called:
            messages += [{"role": "tool", "tool_call_id": it.call_id, "content": it.text} for it in one.results]
        else:  # servers refuse results without calls: these are text
            messages.append({"role": "user" if one.role == TOOL else one.role, "content": one.text})
        called = bool(one.calls)
        if called:
            messages[-1]["tool_calls"] = [_call(it) for it in one.calls]
    return messages


def _call(one: ToolCall) -> dict[str, Any]:
    return {"id": one.call_id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}

"""A conversation as the API takes it: calls of tools with their results as messages of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.conversations.conversation import PastTurn
from engine.prompt.tools.calls import CallResult, ToolCall


def messages_of(
    system: str | None, turns: Sequence[PastTurn], question: str, results: Sequence[CallResult] = ()
) -> list[dict[str, Any]]:
    """Return the messages up to the reply that is wanted; ``results`` stand in place of the question."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    called = False
    for turn, answers in zip(turns, [*(one.results for one in turns[1:]), tuple(results)], strict=False):
        messages += _asked(turn.question, turn.results if called else ())
        called = bool(turn.calls and answers)
        if called:
            calls = [_call(one) for one in turn.calls]
            messages.append({"role": "assistant", "content": turn.reply, "tool_calls": calls})
        else:  # servers refuse calls without results, and results without calls: these are text
            messages.append({"role": "assistant", "content": turn.reply or (turn.raw if turn.calls else "")})
    return messages + _asked(question, results if called else ())


def _asked(question: str, results: Sequence[CallResult]) -> list[dict[str, Any]]:
    if not results:
        return [{"role": "user", "content": question}]
    return [{"role": "tool", "tool_call_id": one.call_id, "content": one.text} for one in results]


def _call(one: ToolCall) -> dict[str, Any]:
    return {"id": one.call_id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}

"""What was said as the API takes it, and calls of tools in a reply: put together from the parts
that servers send."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.backend.remote.pieces import text_of
from app.backend.remote.returned import FieldCollector, add_fields, returned_fields
from app.conversations.conversation import TOOL, PromptMessage
from app.program.remote_model import RemoteModel
from app.program.web import table_in
from engine.prompt.tools.calls import MOST_CALL_CHARS, MOST_CALLS, ToolCall, call, load_json

_MOST_ID_CHARS = 80


class _CallPart:
    """A call as far as it has come."""

    def __init__(self, at: Any, call_id: str, name: str) -> None:
        self.at = at
        self.call_id = call_id
        self.name = name
        self.arguments = ""
        self.is_whole = False
        """Whether its arguments came as an object."""
        self.returned = FieldCollector()
        self.function_returned = FieldCollector()
        """Fields that the server needs back with the call, and within its function."""

    @property
    def fields(self) -> dict[str, Any]:
        """Fields that the server needs back."""
        function = self.function_returned.fields
        return {**self.returned.fields, **({"function": function} if function else {})}


class CallCollector:
    """Puts calls together: whole or in parts, with an index or without, with ids of their own, one
    for all, or none."""

    def __init__(self) -> None:
        self._parts: list[_CallPart] = []
        self.returned: list[Mapping[str, Any]] = []
        """Fields that the server needs back with each of the calls that ``calls`` returned."""
        self._n_chars = 0

    def push(self, delta: Mapping[str, Any]) -> None:
        """Take a part. What would be too much for a call, or for a reply, is dropped."""
        function = table_in(delta, "function") or delta
        name = text_of(function.get("name"))
        call_id = text_of(delta.get("id"))[:_MOST_ID_CHARS]
        part = self._part_of(delta.get("index"), call_id, name)
        arguments = next(
            (function[key] for key in ("arguments", "parameters", "input") if key in function), None
        )
        if part is None or self._n_chars > MOST_CALL_CHARS * 2:
            return
        part.returned.push(returned_fields(delta))
        if function is not delta:
            part.function_returned.push(returned_fields(function))
        if isinstance(arguments, dict):
            part.arguments = json.dumps(arguments, ensure_ascii=False)
            part.is_whole = True
        elif not part.is_whole:
            part.arguments += text_of(arguments)
        if not part.is_whole:
            self._n_chars += len(text_of(arguments))
        else:
            self._n_chars += len(part.arguments)

    def _part_of(self, at: Any, call_id: str, name: str) -> _CallPart | None:
        """Return the call that a part belongs to, perhaps a new one; None where there is no room
        for it."""
        if type(at) is not int:
            at = None
        if self._parts:
            last = self._parts[-1]
        else:
            last = None
        known = [one for one in self._parts if at is not None and one.at == at]
        known = known or [
            one for one in self._parts if at is None and call_id and one.call_id == call_id
        ]
        found = known[-1] if known else (last if at is None and not call_id and not name else None)
        if found is not None and name and found.name and self._is_new(found, call_id, name):
            found = None
        if found is None:
            if len(self._parts) >= MOST_CALLS:
                return None
            found = _CallPart(at, call_id, name)
            self._parts.append(found)
        found.name = found.name or name
        found.call_id = found.call_id or call_id
        return found

    def _is_new(self, found: _CallPart, call_id: str, name: str) -> bool:
        """Whether a name begins another call, of a server that gives all the same index or id."""
        if call_id and found.call_id and call_id != found.call_id:
            return True
        return name != found.name or (not call_id and _is_json(found.arguments))

    def calls(self) -> tuple[list[ToolCall], list[str]]:
        """Return the calls, each with an id of its own, and what of the parts is none, as text."""
        calls: list[ToolCall] = []
        others: list[str] = []
        self.returned = []
        for part in self._parts:
            found = call(part.name, part.arguments)
            if found is None or len(part.arguments) > MOST_CALL_CHARS:
                others.append(f"{part.name} {part.arguments[:MOST_CALL_CHARS]}".strip())
                continue
            is_free = part.call_id and part.call_id not in {one.call_id for one in calls}
            self.returned.append(part.fields)
            calls.append(
                replace(found, call_id=part.call_id if is_free else secrets.token_hex(5)[:9])
            )
        return calls, others


def _is_json(text: str) -> bool:
    try:
        load_json(text)
    except ValueError:
        return False
    return True


def written_calls(calls: Iterable[ToolCall]) -> str:
    """Return calls as a model writes them in most formats, for the text of a reply."""
    return "\n".join(
        f'<tool_call>\n{{"name": {json.dumps(one.name)}, "arguments": {one.arguments}}}\n'
        "</tool_call>"
        for one in calls
    )


def messages_of(
    said: Sequence[PromptMessage], model: RemoteModel | None = None
) -> list[dict[str, Any]]:
    """Return the messages of a request to a model.

    They include what its server needs back of its own replies.
    """
    messages: list[dict[str, Any]] = []
    called = False
    for one in said:
        if one.role == TOOL and called:
            messages += [
                {"role": "tool", "tool_call_id": it.call_id, "content": it.text}
                for it in one.results
            ]
        else:  # servers refuse results without calls: these are text
            messages.append({"role": "user" if one.role == TOOL else one.role, "content": one.text})
        called = bool(one.calls)
        if called:
            messages[-1]["tool_calls"] = [_call(it) for it in one.calls]
        add_fields(messages[-1], one.server_fields, model)
    return messages


def _call(one: ToolCall) -> dict[str, Any]:
    return {
        "id": one.call_id,
        "type": "function",
        "function": {"name": one.name, "arguments": one.arguments},
    }

"""Messages of a request, and tool calls that servers send in pieces."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from app.backend.remote.reply_chunks import text_of
from app.backend.remote.returned_fields import FieldCollector, add_fields, select_returned_fields
from app.conversations.conversation import TOOL, PromptMessage
from app.program.remote_model import RemoteModel
from app.program.web import table_in
from engine.prompt.tools.calls import MAX_CALL_CHARS, MAX_CALLS, ToolCall, call, load_json

_MAX_ID_CHARS = 80
_ARGUMENT_FIELDS = ("arguments", "parameters", "input")


class _PartialCall:
    """A call so far.

    Attributes:
        index: Index that the server gave; None if it gave none.
        call_id: Id of the call; "" if unknown.
        name: Name of the tool; "" if unknown.
        arguments: JSON of the arguments so far.
        has_object: Whether the arguments came as a JSON object instead of text.
    """

    def __init__(self, index: int | None, call_id: str, name: str) -> None:
        self.index = index
        self.call_id = call_id
        self.name = name
        self.arguments = ""
        self.has_object = False
        self.returned = FieldCollector()
        self.function_returned = FieldCollector()

    @property
    def fields(self) -> dict[str, Any]:
        """Fields that the server needs back with the call, and within its function."""
        function_fields = self.function_returned.fields
        if not function_fields:
            return self.returned.fields
        return {**self.returned.fields, "function": function_fields}


class CallCollector:
    """Joins the pieces of tool calls.

    Servers send calls complete or in pieces, with an index or without, with an id for each, the
    same id for all, or none.

    Attributes:
        returned: Fields that the server needs back, for each of the calls that ``calls`` returned.
    """

    def __init__(self) -> None:
        self._partial_calls: list[_PartialCall] = []
        self._n_chars = 0
        self.returned: list[Mapping[str, Any]] = []

    def push(self, piece: Mapping[str, Any]) -> None:
        """Add a piece. Pieces beyond the limits of a call or a reply are dropped."""
        function = table_in(piece, "function") or piece
        name = text_of(function.get("name"))
        call_id = text_of(piece.get("id"))[:_MAX_ID_CHARS]
        partial_call = self._partial_call(piece.get("index"), call_id, name)
        if partial_call is None or self._n_chars > MAX_CALL_CHARS * 2:
            return

        partial_call.returned.push(select_returned_fields(piece))
        if function is not piece:
            partial_call.function_returned.push(select_returned_fields(function))

        arguments = next((function[field] for field in _ARGUMENT_FIELDS if field in function), None)
        if isinstance(arguments, dict):
            partial_call.arguments = json.dumps(arguments, ensure_ascii=False)
            partial_call.has_object = True
        elif not partial_call.has_object:
            partial_call.arguments += text_of(arguments)

        if partial_call.has_object:
            self._n_chars += len(partial_call.arguments)
        else:
            self._n_chars += len(text_of(arguments))

    def _partial_call(self, index: Any, call_id: str, name: str) -> _PartialCall | None:
        """Return the call that a piece belongs to, perhaps a new one; None if there are too
        many."""
        if type(index) is not int:
            index = None
        partial_call = self._matching_call(index, call_id, name)
        if partial_call is not None and _starts_another(partial_call, call_id, name):
            partial_call = None
        if partial_call is None:
            if len(self._partial_calls) >= MAX_CALLS:
                return None
            partial_call = _PartialCall(index, call_id, name)
            self._partial_calls.append(partial_call)
        partial_call.name = partial_call.name or name
        partial_call.call_id = partial_call.call_id or call_id
        return partial_call

    def _matching_call(self, index: int | None, call_id: str, name: str) -> _PartialCall | None:
        """Return the last call with an index, or else with an id. A piece without index, id and
        name continues the last call."""
        for partial_call in reversed(self._partial_calls):
            if index is not None:
                is_match = partial_call.index == index
            elif call_id:
                is_match = partial_call.call_id == call_id
            else:
                is_match = not name
            if is_match:
                return partial_call
        return None

    def calls(self) -> tuple[list[ToolCall], list[str]]:
        """Return the calls, each with its own id, and pieces that are not a call, as text."""
        calls: list[ToolCall] = []
        rest: list[str] = []
        self.returned = []
        for partial_call in self._partial_calls:
            parsed_call = call(partial_call.name, partial_call.arguments)
            if parsed_call is None or len(partial_call.arguments) > MAX_CALL_CHARS:
                arguments = partial_call.arguments[:MAX_CALL_CHARS]
                rest.append(f"{partial_call.name} {arguments}".strip())
                continue
            call_id = partial_call.call_id
            if not call_id or any(call_id == earlier.call_id for earlier in calls):
                call_id = secrets.token_hex(5)[:9]
            calls.append(replace(parsed_call, call_id=call_id))
            self.returned.append(partial_call.fields)
        return calls, rest


def _starts_another(partial_call: _PartialCall, call_id: str, name: str) -> bool:
    """Whether a piece starts another call although index or id are the same, which some servers
    give to all calls."""
    if not name or not partial_call.name:
        return False
    if call_id and partial_call.call_id and call_id != partial_call.call_id:
        return True
    return name != partial_call.name or (not call_id and _is_json(partial_call.arguments))


def _is_json(text: str) -> bool:
    try:
        load_json(text)
    except ValueError:
        return False
    return True


def write_calls(calls: Iterable[ToolCall]) -> str:
    """Return calls in the format of most models, for the text of a reply."""
    return "\n".join(
        f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n'
        "</tool_call>"
        for call in calls
    )


def messages_of(
    messages: Sequence[PromptMessage],
    model: RemoteModel | None = None,
    contents: Mapping[int, list[dict[str, Any]]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return the messages for a request.

    Args:
        messages: Messages of the conversation.
        model: Model of the request. Its own replies get the fields that its server needs back.
        contents: Content parts of the messages with pictures, by index.
    """
    encoded: list[dict[str, Any]] = []
    has_calls = False
    for index, message in enumerate(messages):
        if message.role == TOOL and has_calls:
            encoded += [
                {"role": "tool", "tool_call_id": result.call_id, "content": result.text}
                for result in message.results
            ]
        else:
            # Servers refuse results without calls, so these become text of the user.
            role = "user" if message.role == TOOL else message.role
            encoded.append({"role": role, "content": contents.get(index, message.text)})
        has_calls = bool(message.calls)
        if has_calls:
            encoded[-1]["tool_calls"] = [_encode_call(call) for call in message.calls]
        add_fields(encoded[-1], message.server_fields, model)
    return encoded


def _encode_call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }

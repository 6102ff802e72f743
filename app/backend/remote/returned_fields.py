"""Fields of a reply that its server needs back in the next request: reasoning and signatures.

They are collected from a stream and sent again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.conversations.server_fields import MOST_CHARS, ServerFields
from app.program.remote_model import RemoteModel
from app.program.web_refusals import StatusError
from engine.prompt.tools.calls import is_deep

_NAMES = re.compile(r"reasoning|thinking|thought|signature|extra_content|provider_specific")
"""Pattern of the names of such fields."""
_TEXT_FIELDS = ("text", "summary", "thinking", "content")
"""Fields of an object in a list whose pieces are joined."""
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_MAX_NAME_CHARS = 80
_MAX_FIELDS = 32
_MESSAGE_FIELDS = ("role", "content", "tool_calls", "tool_call_id")
_CALL_FIELDS = ("id", "type", "function")
_FUNCTION_FIELDS = ("name", "arguments")
_REFUSAL_STATUSES = (400, 422)
_REFUSAL_WORDS = re.compile(
    r"extra|unknown|unrecogni|unexpected|additional|not permitted|not allowed", re.IGNORECASE
)
"""Words of servers that refuse unknown fields."""


def select_returned_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a message or a call that its server needs back."""
    return {
        name: value
        for name, value in values.items()
        if value not in _EMPTY and len(name) <= _MAX_NAME_CHARS and _NAMES.search(name)
    }


class FieldCollector:
    """Joins the fields in the pieces of a reply. If there are too many, all are dropped."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._n_chars = 0

    def push(self, fields: Mapping[str, Any]) -> None:
        """Add the fields of the next piece."""
        for name, value in fields.items():
            if isinstance(value, str):
                self._n_chars += len(value)
            else:
                self._n_chars += _count_chars(value)
            if self._n_chars > MOST_CHARS or len(self._fields) > _MAX_FIELDS:
                return
            self._fields[name] = _join(self._fields.get(name), value)

    @property
    def fields(self) -> dict[str, Any]:
        """The joined fields; empty if there are too many."""
        if self._n_chars <= MOST_CHARS and len(self._fields) <= _MAX_FIELDS:
            return self._fields
        return {}


def _count_chars(value: Any) -> int:
    """Return the length of a value as JSON; more than the limit if it is nested too deeply."""
    if is_deep(value):
        return MOST_CHARS + 1
    return len(json.dumps(value))


def _join(earlier: Any, value: Any) -> Any:
    """Return a field with another piece of it."""
    if isinstance(earlier, str) and isinstance(value, str):
        return earlier + value
    if isinstance(earlier, dict) and isinstance(value, dict):
        return _merge(earlier, value)
    if not isinstance(value, list):
        return value

    items = list(earlier) if isinstance(earlier, list) else []
    for item in value:
        if items and _continues(items[-1], item):
            items[-1] = _join_items(items[-1], item)
        else:
            items.append(item)
    return items


def _merge(earlier: Any, value: Any) -> Any:
    """Return a value that came twice: objects are merged; otherwise the later one counts."""
    if isinstance(earlier, dict) and isinstance(value, dict):
        merged = {name: _merge(earlier.get(name), entry) for name, entry in value.items()}
        return {**earlier, **merged}
    if value in _EMPTY:
        return earlier
    return value


def _continues(earlier: Any, item: Any) -> bool:
    """Whether an object of a list is the next piece of the one before: type and index are the
    same."""
    if not (isinstance(earlier, dict) and isinstance(item, dict)) or "data" in item:
        return False
    return earlier.get("type") == item.get("type") and earlier.get("index") == item.get("index")


def _join_items(earlier: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(earlier)
    for name, value in item.items():
        earlier_value = joined.get(name)
        are_texts = isinstance(earlier_value, str) and isinstance(value, str)
        if name in _TEXT_FIELDS and are_texts:
            joined[name] = earlier_value + value
        elif value not in _EMPTY:
            joined[name] = value
    return joined


# ---- the next request


def add_fields(
    message: dict[str, Any], fields: ServerFields | None, model: RemoteModel | None
) -> None:
    """Add to a message the fields that its server needs back.

    Nothing is added for another server or model.
    """
    if fields is None or model is None:
        return
    if (fields.server, fields.model) != (model.server, model.name):
        return
    message.update({name: value for name, value in fields.message.items() if name not in message})

    calls = message.get("tool_calls", [])
    if len(calls) != len(fields.calls):
        return
    for call, call_fields in zip(calls, fields.calls, strict=True):
        function = call_fields.get("function")
        if isinstance(function, dict):
            call["function"] = {**function, **call["function"]}
        call.update({name: value for name, value in call_fields.items() if name not in call})


def without_returned_fields(
    request: Mapping[str, Any], error: StatusError
) -> Mapping[str, Any] | None:
    """Return a request without the returned fields if the server has refused them.

    None if the error has another reason.
    """
    messages = request.get("messages")
    if error.status not in _REFUSAL_STATUSES or not isinstance(messages, list):
        return None
    names = set(_returned_names(messages))
    text = str(error)
    is_about_fields = _REFUSAL_WORDS.search(text) or any(name in text for name in names)
    if not names or not is_about_fields:
        return None
    return {**request, "messages": [_plain_message(message) for message in messages]}


def _returned_names(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        yield from (name for name in message if name not in _MESSAGE_FIELDS)
        for call in message.get("tool_calls", ()):
            yield from (name for name in call if name not in _CALL_FIELDS)
            yield from (name for name in call["function"] if name not in _FUNCTION_FIELDS)


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with only the fields that every server knows."""
    plain = {name: value for name, value in message.items() if name in _MESSAGE_FIELDS}
    if "tool_calls" in plain:
        plain["tool_calls"] = [
            {
                **{name: value for name, value in call.items() if name in _CALL_FIELDS},
                "function": {name: call["function"][name] for name in _FUNCTION_FIELDS},
            }
            for call in plain["tool_calls"]
        ]
    return plain

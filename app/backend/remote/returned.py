"""Fields of a reply that its server needs back: reasoning and signatures.

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
"""Parts of the names of such fields."""
_GROWING = ("text", "summary", "thinking", "content")
"""Fields of an object in a list whose pieces are joined."""
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_MOST_NAME_CHARS = 80
_MOST_FIELDS = 32
_MESSAGE_FIELDS = ("role", "content", "tool_calls", "tool_call_id")
_CALL_FIELDS = ("id", "type", "function")
_FUNCTION_FIELDS = ("name", "arguments")
_REFUSING = (400, 422)
_REFUSED = re.compile(
    r"extra|unknown|unrecogni|unexpected|additional|not permitted|not allowed", re.IGNORECASE
)
"""Words of servers that refuse fields which they do not know."""


def returned_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a message, or of a call, that its server needs back."""
    return {
        name: value
        for name, value in values.items()
        if value not in _EMPTY and len(name) <= _MOST_NAME_CHARS and _NAMES.search(name)
    }


class FieldCollector:
    """Joins the fields of the pieces of a reply.

    If a reply has too much of them, none are kept.
    """

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._n_chars = 0

    def push(self, fields: Mapping[str, Any]) -> None:
        """Take the fields of the next piece."""
        for name, value in fields.items():
            if isinstance(value, str):
                self._n_chars += len(value)
            else:
                self._n_chars += _size_of(value)
            if self._n_chars > MOST_CHARS or len(self._fields) > _MOST_FIELDS:
                return
            self._fields[name] = _joined(self._fields.get(name), value)

    @property
    def fields(self) -> dict[str, Any]:
        """The whole fields; empty if there are too many."""
        if self._n_chars <= MOST_CHARS and len(self._fields) <= _MOST_FIELDS:
            return self._fields
        return {}


def _size_of(value: Any) -> int:
    """Return the length of a value as JSON; more than is kept if it is nested too deeply."""
    if is_deep(value):
        return MOST_CHARS + 1
    return len(json.dumps(value))


def _joined(before: Any, value: Any) -> Any:
    """Return a field of which another piece has come."""
    if isinstance(before, str) and isinstance(value, str):
        return before + value
    if isinstance(before, dict) and isinstance(value, dict):
        return {**before, **{name: _merged(before.get(name), one) for name, one in value.items()}}
    if not isinstance(value, list):
        return value
    if isinstance(before, list):
        items = list(before)
    else:
        items = []
    for item in value:
        if items and _is_continued(items[-1], item):
            items[-1] = _continued(items[-1], item)
        else:
            items.append(item)
    return items


def _merged(before: Any, value: Any) -> Any:
    """Return a value within a field that came twice.

    Objects are merged; of other values, the later counts.
    """
    if isinstance(before, dict) and isinstance(value, dict):
        return {
            **before,
            **{name: _merged(before.get(name), entry) for name, entry in value.items()},
        }
    if value in _EMPTY:
        return before
    return value


def _is_continued(before: Any, item: Any) -> bool:
    """Whether an object of a list is the next piece of the one before.

    It then has the same kind and the same index.
    """
    if not (isinstance(before, dict) and isinstance(item, dict)) or "data" in item:
        return False
    return before.get("type") == item.get("type") and before.get("index") == item.get("index")


def _continued(before: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(before)
    for name, value in item.items():
        earlier = joined.get(name)
        if name in _GROWING and isinstance(earlier, str) and isinstance(value, str):
            joined[name] = earlier + value
        elif value not in _EMPTY:
            joined[name] = value
    return joined


# ---- sent again


def add_fields(
    message: dict[str, Any], fields: ServerFields | None, model: RemoteModel | None
) -> None:
    """Add to a message of a request what its server needs back of it.

    Nothing is added for another server or model.
    """
    if (
        fields is None
        or model is None
        or (fields.server, fields.model) != (model.server, model.name)
    ):
        return
    message.update({name: value for name, value in fields.message.items() if name not in message})
    calls = message.get("tool_calls", [])
    if len(calls) != len(fields.calls):
        return
    for call, more in zip(calls, fields.calls, strict=True):
        function = more.get("function")
        if isinstance(function, dict):
            call["function"] = {**function, **call["function"]}
        call.update({name: value for name, value in more.items() if name not in call})


def without_fields(request: Mapping[str, Any], error: StatusError) -> Mapping[str, Any] | None:
    """Return a request without what was returned, if a server refuses that.

    None if it refuses something else.
    """
    messages = request.get("messages")
    if error.status not in _REFUSING or not isinstance(messages, list):
        return None
    names = set(_returned_names(messages))
    words = str(error)
    if not names or not (_REFUSED.search(words) or any(name in words for name in names)):
        return None
    return {**request, "messages": [_plain(message) for message in messages]}


def _returned_names(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        yield from (name for name in message if name not in _MESSAGE_FIELDS)
        for call in message.get("tool_calls", ()):
            yield from (name for name in call if name not in _CALL_FIELDS)
            yield from (name for name in call["function"] if name not in _FUNCTION_FIELDS)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with the fields alone that every server knows."""
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

"""Messages as rows of the database: the text, and everything else as JSON. Rows are not trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from app.conversations.conversation import ChatMessage, Ending, ReplyFigures, Role
from app.conversations.server_fields import fields_of
from app.reply.thinking import Thinking
from app.text.clean_text import clean_line, clean_text
from app.text.guesses import NAMES, GuessFigures
from engine.prompt.tools.calls import MAX_CALLS, NAME, CallResult, ToolCall, call

_MOST_NAME_CHARS = 80
_LARGEST = 1 << 53
_MOST_OLD_ALTERNATIVES = 8
"""Limit on the alternatives that versions 1 and 2 of the database kept with a reply."""

Values = Mapping[str, Any]


class UnsoundError(Exception):
    """A row is not a message."""


def row_of(message: ChatMessage) -> tuple[str, int, int, str, str]:
    """Return role, number of tokens, size in bytes, text and everything else as JSON."""
    json_text = json.dumps(values_of(message), separators=(",", ":"))
    text = message.text.encode("utf-8", "replace").decode()
    if message.figures is not None:
        tokens = message.figures.tokens
    else:
        tokens = len(message.ids)
    return message.role.value, tokens, len(text.encode()) + len(json_text), text, json_text


def message_of(role: object, text: object, json_text: object) -> ChatMessage:
    """Return the message of a row. Raises UnsoundError.

    Its alternatives have rows of their own, but not in versions 1 and 2 of the database.
    """
    values = parsed(json_text)
    _require(isinstance(values, dict) and isinstance(text, str))
    return message_of_values({**values, "role": role, "text": text})


def message_of_values(values: Values) -> ChatMessage:
    """Return the message of all its values. Raises UnsoundError."""
    role = values.get("role")
    _require(role in list(Role))
    if role == Role.ASSISTANT:
        message = reply_of(values)
    else:
        message = ChatMessage(Role.USER, clean_text(_text(values, "text")))
        message.folded = clean_text(_text(values, "folded"))
        message.results = _results(values)
    message.n_older = _count(values, "n_older")
    return message


def parsed(json_text: object) -> Any:
    """Return the value of a JSON text; None if it is not valid."""
    if not isinstance(json_text, str):
        return None
    try:
        return json.loads(json_text)
    except (ValueError, RecursionError):
        return None


def values_of(message: ChatMessage) -> dict[str, Any]:
    """Return everything but role, text and alternatives, for JSON."""
    if message.role is Role.USER:
        results = [
            {"id": result.call_id, "name": result.name, "text": result.text}
            for result in message.results
        ]
        return {
            "folded": message.folded,
            **({"results": results} if results else {}),
            **({"n_older": message.n_older} if message.n_older else {}),
        }
    calls = [
        {"id": call_.call_id, "name": call_.name, "arguments": call_.arguments}
        for call_ in message.calls
    ]
    return {
        "ending": message.ending.value,
        "figures": asdict(message.figures) if message.figures is not None else None,
        "thinking": asdict(message.thinking) if message.thinking is not None else None,
        "edited": message.is_edited,
        "ids": list(message.ids),
        "raw": message.raw if message.raw != message.text else None,
        **({"model": message.model} if message.model else {}),
        **({"calls": calls, "calls_at": message.calls_at} if calls else {}),
        **(
            {"server_fields": asdict(message.server_fields)}
            if message.server_fields is not None
            else {}
        ),
        **({"n_older": message.n_older} if message.n_older else {}),
    }


def reply_of(values: Values) -> ChatMessage:
    """Return a reply from its values. Raises UnsoundError.

    Versions 1 and 2 of the database have alternative replies among the values of a reply.
    """
    try:
        ending = Ending(values.get("ending"))
    except ValueError:
        raise UnsoundError from None
    text = _text(values, "text")
    raw = values.get("raw")
    message = ChatMessage(Role.ASSISTANT, clean_text(text), ending, _figures(values.get("figures")))
    message.thinking = _thinking(values.get("thinking"))
    message.is_edited = values.get("edited") is True
    message.model = _line(values, "model")
    message.ids = _ids(values)
    if isinstance(raw, str):
        message.raw = raw
    else:
        message.raw = text
    message.calls, message.calls_at = (
        _calls(values),
        min(_count(values, "calls_at"), len(message.raw)),
    )
    message.server_fields = fields_of(values.get("server_fields"))
    alternatives = _objects(values, "others")[:_MOST_OLD_ALTERNATIVES]
    message.alternatives = tuple(
        (reply_of({**alternative_values, "others": []}),) for alternative_values in alternatives
    )
    return message


def _calls(values: Values) -> tuple[ToolCall, ...]:
    calls = []
    for call_values in _objects(values, "calls"):
        checked_call = call(call_values.get("name"), _text(call_values, "arguments"))
        if checked_call is None:
            raise UnsoundError
        calls.append(ToolCall(checked_call.name, checked_call.arguments, _line(call_values, "id")))
    return tuple(calls)


def _results(values: Values) -> tuple[CallResult, ...]:
    items = _objects(values, "results")
    _require(all(NAME.fullmatch(_text(result_values, "name")) for result_values in items))
    return tuple(
        CallResult(
            _text(result_values, "name"),
            clean_text(_text(result_values, "text")),
            _line(result_values, "id"),
        )
        for result_values in items
    )


def _objects(values: Values, name: str) -> list[Values]:
    items: list[Values] = values.get(name, [])
    _require(
        isinstance(items, list)
        and len(items) <= MAX_CALLS
        and all(isinstance(item, dict) for item in items)
    )
    return items


def _figures(values: Any) -> ReplyFigures | None:
    if values is None:
        return None
    _require(isinstance(values, dict))
    checked: dict[str, Any] = {
        name: _number(values, name) for name in ("first_token_s", "decode_tps")
    }
    for name in ("tokens", "prompt_tokens", "reused_tokens", "guessed_tokens"):
        checked[name] = _count(values, name)
    checked["guesses"] = tuple(
        GuessFigures(kind, _count(guesses, "tried"), _count(guesses, "right"))
        for guesses in _objects(values, "guesses")
        if (kind := _text(guesses, "kind")) in NAMES
    )
    saved_s = values.get("guess_saved_s")
    if saved_s is not None:
        _require(type(saved_s) in (int, float) and _is_number(abs(saved_s)))
        checked["guess_saved_s"] = float(saved_s)
    return ReplyFigures(**checked)


def _thinking(values: Any) -> Thinking | None:
    if values is None:
        return None
    _require(isinstance(values, dict))
    duration_s = _number(values, "duration_s") or 0.0
    is_closed = values.get("is_closed") is True
    return Thinking(
        clean_text(_text(values, "text")), _count(values, "tokens"), duration_s, is_closed
    )


def _require(is_sound: bool) -> None:
    if not is_sound:
        raise UnsoundError


def _text(values: Values, name: str) -> str:
    value: str | None = values.get(name)
    _require(value is None or isinstance(value, str))
    return value or ""


def _line(values: Values, name: str) -> str:
    return clean_line(_text(values, name), _MOST_NAME_CHARS)


def _count(values: Values, name: str) -> int:
    value: int = values.get(name, 0)
    _require(type(value) is int and 0 <= value <= _LARGEST)
    return value


def _number(values: Values, name: str) -> float | None:
    value = values.get(name)
    _require(value is None or _is_number(value))
    if value is None:
        return None
    return float(value)


def _is_number(value: Any) -> bool:
    return (
        type(value) in (int, float)
        and abs(value) < _LARGEST
        and math.isfinite(value)
        and value >= 0
    )


def _ids(values: Values) -> tuple[int, ...]:
    ids = values.get("ids")
    if ids is None:
        return ()
    _require(are_ids(ids))
    return tuple(ids)


def are_ids(values: object) -> bool:
    """Whether the values are token ids."""
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < _LARGEST for value in values
    )

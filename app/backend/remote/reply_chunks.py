"""Parser for the JSON objects of a reply: text, thought, tool calls, reason of the end, figures.

Servers send them in various formats. The type of each field is checked before it is used; a field
of another type counts as absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from app.backend.remote.returned_fields import select_returned_fields
from app.program.web import table_in
from app.text.record import record

MAX_COUNT = 1 << 40
_SURROGATES = re.compile("[\ud800-\udfff]")
_MAX_DEPTH = 4
"""Limit on the nesting of content parts."""
_THOUGHT_FIELDS = (
    "reasoning_content",
    "reasoning",
    "thinking",
    "reasoning_text",
    "reasoning_details",
)
"""Fields with the thought. A server that sends two repeats the text in both."""
_NO_REASON = ("", "null", "none")
"""Words that some servers send instead of null while a reply continues."""
_LENGTH_REASONS = (
    "length",
    "max_tokens",
    "max_output_tokens",
    "model_length",
    "context_length",
)
LENGTH = "length"
_TEXT_FIELDS = ("text", "thinking", "reasoning", "refusal", "summary", "content", "value")
_ERROR_FIELDS = (
    "error",
    "message",
    "detail",
    "msg",
    "errors",
    "error_message",
    "title",
    "text",
    "type",
)


@record
class Figures:
    """Figures of a reply as the server reports them; None if it does not report one."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tokens: int | None = None
    prefill_s: float | None = None


@record
class ReplyChunk:
    """A part of a reply."""

    answer: str = ""
    thought: str = ""
    finish: str = ""
    """Reason why the reply ended, in the server's word; "" while it continues."""
    figures: Figures | None = None
    calls: tuple[Mapping[str, Any], ...] = ()
    """Tool calls or parts of them, unchanged."""
    returned: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the server needs back with the reply."""
    is_complete: bool = False
    """Whether the chunk is the whole reply, which some servers repeat at the end of a stream."""
    is_unknown: bool = False
    """Whether the content has no text in a known format."""


def parse_chunk(event: Any) -> ReplyChunk:
    """Parse an object of a stream, or a complete reply."""
    if not isinstance(event, dict):
        event = {}
    choice = _first_choice(event)
    delta = choice.get("delta")
    message = choice.get("message", event.get("message"))
    source: dict[str, Any] = {}
    if isinstance(delta, dict) and delta:
        source = delta
    elif isinstance(message, dict):
        source = message

    content = source.get("content")
    answer, thought = _content_texts(content)
    answer = answer or text_of(source.get("refusal")) or text_of(choice.get("text"))
    if not thought:
        thoughts = (_nested_text(source.get(name)) for name in _THOUGHT_FIELDS)
        thought = next(filter(None, thoughts), "")
    return ReplyChunk(
        answer,
        thought,
        _finish_reason(choice, source, event),
        _parse_figures(event, choice),
        tuple(_calls(source)),
        select_returned_fields(source),
        is_complete=source is not delta and choice.get("message") is source,
        is_unknown=bool(content) and not (answer or thought),
    )


def _first_choice(event: dict[str, Any]) -> dict[str, Any]:
    choices = event.get("choices")
    if not isinstance(choices, list):
        return {}
    objects = [choice for choice in choices if isinstance(choice, dict)]
    for choice in objects:
        if choice.get("index") in (0, None):
            return choice
    if objects:
        return objects[0]
    return {}


def _content_texts(content: Any) -> tuple[str, str]:
    """Return the texts of answer and thought in a content: a string, a part, or a list of parts."""
    if isinstance(content, str):
        return text_of(content), ""
    answers: list[str] = []
    thoughts: list[str] = []
    for part in content if isinstance(content, list) else (content,):
        if not isinstance(part, dict):
            continue
        part_type = text_of(part.get("type"))
        if any(word in part_type for word in ("thinking", "reasoning", "thought")):
            thoughts.append(_nested_text(part))
        else:
            answers.append(_nested_text(part))
    return "".join(answers), "".join(thoughts)


def _nested_text(value: Any, depth: int = 0) -> str:
    """Return all text in a string, a part of any type, or a list of them."""
    if depth >= _MAX_DEPTH:
        return ""
    if isinstance(value, list):
        return "".join(_nested_text(item, depth + 1) for item in value)
    if isinstance(value, dict):
        texts = (_nested_text(value.get(name), depth + 1) for name in _TEXT_FIELDS)
        return next(filter(None, texts), "")
    return text_of(value)


def _calls(source: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    calls = source.get("tool_calls")
    if not isinstance(calls, list):
        calls = [calls]
    for call in calls:
        if isinstance(call, dict):
            yield call
    function_call = source.get("function_call")  # an older field for a single call
    if isinstance(function_call, dict):
        yield {"function": function_call}


def _finish_reason(choice: dict[str, Any], source: dict[str, Any], event: dict[str, Any]) -> str:
    """Return the reason why the reply ended, wherever it is."""
    for fields in (choice, source, event):
        for name in ("finish_reason", "stop_reason", "done_reason"):
            reason = text_of(fields.get(name)).strip()[:40]
            if reason.lower() in _NO_REASON:
                continue
            if reason.lower() in _LENGTH_REASONS:
                return LENGTH
            return reason
    if event.get("done") is True:
        return "stop"
    return ""


def text_of(value: Any) -> str:
    """Return a string without lone surrogates; "" for other types."""
    if not isinstance(value, str):
        return ""
    return _SURROGATES.sub("�", value)


def count_of(value: Any) -> int | None:
    """Return a number of tokens; None for other values."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is int and 0 <= value < MAX_COUNT:
        return value
    return None


def _parse_figures(event: dict[str, Any], choice: dict[str, Any]) -> Figures | None:
    usage = table_in(event, "usage") or table_in(choice, "usage")
    timings = table_in(event, "timings")
    if not usage and not timings:
        return None

    prefill_s: float | None = None
    prompt_ms: Any = timings.get("prompt_ms")
    if isinstance(prompt_ms, (int, float)) and 0 < prompt_ms < MAX_COUNT:
        prefill_s = float(prompt_ms) / 1000
    cached_tokens = count_of(table_in(usage, "prompt_tokens_details").get("cached_tokens"))
    if cached_tokens is None:
        cached_tokens = count_of(timings.get("cache_n"))
    return Figures(
        count_of(usage.get("prompt_tokens")),
        cached_tokens,
        count_of(usage.get("completion_tokens")),
        prefill_s,
    )


def find_error(event: Any) -> Any:
    """Return the error in an object of a stream; None if there is none."""
    if not isinstance(event, dict):
        return None
    choice = _first_choice(event)
    for fields in (event, choice):
        if fields.get("error"):
            return fields["error"]

    is_error = (
        "error" in (event.get("object"), event.get("type"), event.get("status"))
        or event.get("error_code")
        or text_of(choice.get("finish_reason")).lower() == "error"
    )
    if is_error:
        return event
    return None


def error_text(answer: Any, depth: int = 0) -> str:
    """Return the text for people in the body of a refusal; "" if there is none."""
    if isinstance(answer, list) and answer and depth < _MAX_DEPTH:
        return error_text(answer[0], depth + 1)
    if not isinstance(answer, dict) or depth >= _MAX_DEPTH:
        return text_of(answer)[:2000]

    for name in _ERROR_FIELDS:
        text = error_text(answer.get(name), depth + 1)
        if not text:
            continue
        # A gateway adds the answer of the server that it forwards to.
        raw_text = error_text(table_in(answer, "metadata").get("raw"), depth + 1)
        if raw_text and name == "message":
            return f"{text}: {raw_text}"
        return text
    return ""

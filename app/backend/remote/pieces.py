"""What the objects of an answer say: text, thought, calls, why it ended, figures.

Nothing of an object is believed before its type is looked at; what does not fit is as if it were
not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from app.backend.remote.returned import returned_fields
from app.program.web import table_in
from app.text.record import record

MOST_COUNT = 1 << 40
_LONE = re.compile("[\ud800-\udfff]")
_MOST_DEPTH = 4
"""Of parts within parts."""
_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "reasoning_text", "reasoning_details")
"""Names of the thought before the answer; a server that uses two says the same in both."""
_NO_FINISH = ("", "null", "none")
"""What some servers write in every piece in place of null."""
_LENGTHS = ("length", "max_tokens", "max_output_tokens", "model_length", "context_length")
LENGTH = "length"


@record
class Figures:
    """Figures of a reply as a server gives them; None where it gives none."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tokens: int | None = None
    prefill_s: float | None = None


@record
class Delta:
    """More of a reply."""

    answer: str = ""
    thought: str = ""
    finish: str = ""
    """Why the reply ended, in the server's word; "" while it goes on."""
    figures: Figures | None = None
    calls: tuple[Mapping[str, Any], ...] = ()
    """Of tools, or parts of them, as they came."""
    returned: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the server needs back with the reply."""
    is_whole: bool = False
    """Whether it is the whole reply, which some servers send once more at the end of a stream."""
    is_unknown: bool = False
    """Whether it has something in place of text that is none."""


def piece_of(event: Any) -> Delta:
    """Take what counts from an object of a stream, or from a whole answer."""
    if not isinstance(event, dict):
        event = {}
    choice = _choice(event)
    delta = choice.get("delta")
    message = choice.get("message", event.get("message"))
    said: dict[str, Any] = (
        delta if isinstance(delta, dict) and delta else message if isinstance(message, dict) else {}
    )
    content = said.get("content")
    answer, thought = _texts(content)
    answer = answer or text_of(said.get("refusal")) or text_of(choice.get("text"))
    thought = thought or next(filter(None, (_whole_text(said.get(name)) for name in _THOUGHTS)), "")
    calls = tuple(_calls(said))
    return Delta(
        answer,
        thought,
        _finish(choice, said, event),
        _figures(event, choice),
        calls,
        returned_fields(said),
        is_whole=said is not delta and choice.get("message") is said,
        is_unknown=bool(content and not (answer or thought)),
    )


def _choice(event: dict[str, Any]) -> dict[str, Any]:
    choices = event.get("choices")
    if isinstance(choices, list):
        found = [one for one in choices if isinstance(one, dict)]
    else:
        found = []
    return next((one for one in found if one.get("index") in (0, None)), found[0] if found else {})


def _texts(content: Any) -> tuple[str, str]:
    """Return the text of the answer and that of the thought in a content: a text, a part, or a list
    of parts."""
    if isinstance(content, str):
        return text_of(content), ""
    texts: tuple[list[str], list[str]] = [], []
    for part in content if isinstance(content, list) else (content,):
        if isinstance(part, dict):
            kind = text_of(part.get("type"))
            is_thought = "thinking" in kind or "reasoning" in kind or "thought" in kind
            texts[is_thought].append(_whole_text(part))
    return "".join(texts[False]), "".join(texts[True])


def _whole_text(value: Any, depth: int = 0) -> str:
    """Return all text in a text, a part of whatever kind, or a list of them."""
    if depth >= _MOST_DEPTH:
        return ""
    if isinstance(value, list):
        return "".join(_whole_text(one, depth + 1) for one in value)
    if isinstance(value, dict):
        names = ("text", "thinking", "reasoning", "refusal", "summary", "content", "value")
        return next(filter(None, (_whole_text(value.get(name), depth + 1) for name in names)), "")
    return text_of(value)


def _calls(said: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    found = said.get("tool_calls")
    if not isinstance(found, list):
        found = [found]
    old = said.get("function_call")
    for one in (*found, {"function": old} if isinstance(old, dict) else None):
        if isinstance(one, dict):
            yield one


def _finish(choice: dict[str, Any], said: dict[str, Any], event: dict[str, Any]) -> str:
    """Return why the reply ended, wherever it says so."""
    for place in (choice, said, event):
        for name in ("finish_reason", "stop_reason", "done_reason"):
            word = text_of(place.get(name)).strip()[:40]
            if word.lower() not in _NO_FINISH:
                if word.lower() in _LENGTHS:
                    return LENGTH
                return word
    if event.get("done") is True:
        return "stop"
    return ""


def text_of(value: Any) -> str:
    """Return a text without halves of characters; "" for anything else."""
    if not isinstance(value, str):
        return ""
    return _LONE.sub("�", value)


def count_of(value: Any) -> int | None:
    """Return a number of tokens; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is int and 0 <= value < MOST_COUNT:
        return value
    return None


def _figures(event: dict[str, Any], choice: dict[str, Any]) -> Figures | None:
    usage = table_in(event, "usage") or table_in(choice, "usage")
    timings = table_in(event, "timings")
    if not usage and not timings:
        return None
    milliseconds: Any = timings.get("prompt_ms")
    is_time = isinstance(milliseconds, (int, float)) and 0 < milliseconds < MOST_COUNT
    cached = count_of(table_in(usage, "prompt_tokens_details").get("cached_tokens"))
    return Figures(
        count_of(usage.get("prompt_tokens")),
        cached if cached is not None else count_of(timings.get("cache_n")),
        count_of(usage.get("completion_tokens")),
        float(milliseconds) / 1000 if is_time else None,
    )


def error_in(event: Any) -> Any:
    """Return what an object says went wrong; None where it says nothing of the kind."""
    if not isinstance(event, dict):
        return None
    if event.get("error"):
        return event["error"]
    choice = _choice(event)
    if choice.get("error"):
        return choice["error"]
    is_error = "error" in (
        event.get("object"),
        event.get("type"),
        event.get("status"),
    ) or event.get("error_code")
    is_error = is_error or text_of(choice.get("finish_reason")).lower() == "error"
    if is_error:
        return event
    return None


def words_of(answer: Any, depth: int = 0) -> str:
    """Return what the body of a refusal says to people, in the shapes that servers give it; "" for
    none."""
    if isinstance(answer, list) and answer and depth < _MOST_DEPTH:
        return words_of(answer[0], depth + 1)
    if not isinstance(answer, dict) or depth >= _MOST_DEPTH:
        return text_of(answer)[:2000]
    for name in (
        "error",
        "message",
        "detail",
        "msg",
        "errors",
        "error_message",
        "title",
        "text",
        "type",
    ):
        if words := words_of(answer.get(name), depth + 1):
            # what a gateway was told in its turn
            raw = words_of(table_in(answer, "metadata").get("raw"), depth + 1)
            if raw and name == "message":
                return f"{words}: {raw}"
            return words
    return ""

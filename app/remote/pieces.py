"""Answers of a server, piece by piece: JSON objects in a stream of events, each bounded and taken for nothing better.

Nothing of an object is believed before its type is looked at; what does not fit is as if it were not there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from app.downloads.refusal import ConnectionCut, DownloadError
from app.text.record import record

MOST_LINE_BYTES = 1 << 20
"""Of one event; the longest that servers write, with log-probabilities, have a few kilobytes."""
_MOST_COUNT = 1 << 40
_LONE = re.compile("[\ud800-\udfff]")


@record
class Figures:
    """Figures of a reply as a server gives them; None where it gives none."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tokens: int | None = None
    prefill_s: float | None = None


@record
class Piece:
    """More of a reply."""

    answer: str = ""
    thought: str = ""
    finish: str = ""
    """Why the reply ended, in the server's word; "" while it goes on."""
    figures: Figures | None = None


def events(body: Iterable[bytes], host: str) -> Iterator[Any]:
    """Yield the JSON objects of a stream of events until it says that it is done. Raises DownloadError."""
    for line in _lines(body, host):
        if line.lstrip()[:1] in (b"<", b"{"):
            yield parsed(line, host)
        if not line.startswith(b"data:"):
            continue  # a comment that keeps the connection alive, or a field that says nothing
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        if data:
            yield parsed(data, host)
    raise ConnectionCut(f"{host}: the connection ended before the answer did")


def _lines(body: Iterable[bytes], host: str) -> Iterator[bytes]:
    held = bytearray()
    for piece in body:
        held += piece
        if b"\n" in piece:  # otherwise a line that comes byte by byte would be looked through for each
            *whole, held = held.split(b"\n")
            yield from map(bytes, whole)
        if len(held) > MOST_LINE_BYTES:
            raise DownloadError(f"{host}: sends a line that does not end")
    yield bytes(held)


def parsed(data: bytes, host: str) -> Any:
    """Read JSON. Raises DownloadError: it is none."""
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        kind = "a web page" if data.lstrip()[:1] == b"<" else "something else"
        words = f"{host}: sends {kind} where the API's JSON is expected: is the address right? It usually ends in /v1"
        raise DownloadError(words) from None


def piece_of(event: Any) -> Piece:
    """Take what counts from an object of a stream, or from a whole answer."""
    event = event if isinstance(event, dict) else {}
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    said = next((one for one in (choice.get("delta"), choice.get("message")) if isinstance(one, dict)), {})
    return Piece(
        text_of(said.get("content")) or text_of(choice.get("text")),
        text_of(said.get("reasoning_content")) or text_of(said.get("reasoning")),
        text_of(choice.get("finish_reason"))[:40],
        _figures(event),
    )


def text_of(value: Any) -> str:
    """Return a text without halves of characters; "" for anything else."""
    if not isinstance(value, str):
        return ""
    return _LONE.sub("�", value)


def count_of(value: Any) -> int | None:
    """Return a number of tokens; None for anything else."""
    return value if type(value) is int and 0 <= value < _MOST_COUNT else None


def _figures(event: dict[str, Any]) -> Figures | None:
    usage, timings = _table(event, "usage"), _table(event, "timings")
    if not usage and not timings:
        return None
    milliseconds: Any = timings.get("prompt_ms")
    is_time = isinstance(milliseconds, (int, float)) and 0 < milliseconds < _MOST_COUNT
    cached = count_of(_table(usage, "prompt_tokens_details").get("cached_tokens"))
    return Figures(
        count_of(usage.get("prompt_tokens")),
        cached if cached is not None else count_of(timings.get("cache_n")),
        count_of(usage.get("completion_tokens")),
        float(milliseconds) / 1000 if is_time else None,
    )


def _table(holder: dict[str, Any], name: str) -> dict[str, Any]:
    found = holder.get(name)
    return found if isinstance(found, dict) else {}

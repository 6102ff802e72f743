"""One request to a server and its answer: sent once, never led elsewhere, bounded in bytes and time.

Whatever goes wrong is one line. What a server says is part of it, cleaned and without the key that it may repeat.
Nothing of an object is believed before its type is looked at; what does not fit is as if it were not there.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from app.downloads.hub import table_in
from app.downloads.refusal import ConnectionCut, DownloadError, StatusError, host_of, pause_s_of
from app.downloads.web import REDIRECTS, Response, Web
from app.library.listing import ModelEntry
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.remote_model import RemoteModel, server_address
from app.text.clean_text import clean_line
from app.text.figures import whole_seconds
from app.text.record import record

_MOST_ANSWER_BYTES = 4 << 20
"""Of an answer that is no stream."""
_MOST_STREAM_BYTES = 64 << 20
_MOST_TEXT_CHARS = 4 << 20
"""A context of a million tokens has about as many."""
_MOST_MODELS = 1000
_MOST_NAME_CHARS = 200
_CONTEXT_NAMES = ("max_model_len", "context_length", "context_window", "n_ctx")
_READ_BYTES = 1 << 16
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


@record
class Limits:
    """Seconds that things may take."""

    connecting_s: float = 10.0
    """Each step of making a connection."""
    listing_s: float = 30.0
    """A whole answer that nothing is computed for."""
    silence_s: float = 600.0
    """Until more of a reply comes: a long prompt is read before its first word, and others may be served first."""
    whole_s: float = 4 * 3600.0
    """A reply from its first byte to its last."""
    linger_s: float = 5.0
    """Limit on the figures that may follow the end of a reply."""


@record
class Listed:
    """A model that a server names."""

    name: str
    n_ctx: int = 0
    """0 where it does not say so."""


class Exchange:
    """One request, which any thread may cancel. ``key``: of the server; sent where nobody on the way can read it."""

    def __init__(
        self,
        model: RemoteModel,
        key: str = "",
        limits: Limits = Limits(),  # noqa: B008 - it does not change
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server, self._host, self._name = model.server, model.host, model.name
        self._key, self._is_private, self._limits, self._clock = key, model.is_private, limits, clock
        self.is_cancelled = False
        self._web: Web | None = None
        self._until_s = self._text_s = 0.0
        """When all is to be there, and when the last of it came that counts."""

    def cancel(self) -> None:
        """End it."""
        self.is_cancelled = True
        if self._web is not None:
            self._web.give_up()

    def models(self) -> list[Listed]:
        """Ask which models there are. Raises DownloadError: there is no answer that can be used."""
        response = self._send("/models", None, self._limits.listing_s, self._limits.listing_s)
        answer = self._whole(response)
        found = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(found, list):
            raise DownloadError(f"{self._host}: does not list models as the API does: is the address right?")
        listed = [_listed(one) for one in found[:_MOST_MODELS] if isinstance(one, dict)]
        return [one for one in listed if one.name]

    def pieces(self, path: str, request: Mapping[str, Any]) -> Iterator[Piece]:
        """Ask for a reply; the last piece may have figures alone. Raises ConnectionCut, or another DownloadError."""
        limits = self._limits
        response = self._send(path, json.dumps(request).encode(), limits.silence_s, limits.whole_s)
        try:
            if response.headers.get_content_type() == "application/json":  # no streams here: the reply is one piece
                yield from self._checked(iter([self._whole(response)]))
            else:
                yield from self._checked(events(self._body(response, _MOST_STREAM_BYTES), self._host))
        finally:
            response.close()

    def _checked(self, found: Iterator[Any]) -> Iterator[Piece]:
        """Yield what each object says, until the reply has ended and its figures are there."""
        n_chars, is_over = 0, False
        try:
            for event in found:
                if isinstance(event, dict) and event.get("error"):
                    raise DownloadError(f"{self._host}: {self._words(event) or 'the server broke off'}")
                piece = piece_of(event)
                if piece.answer or piece.thought:
                    self._text_s = self._clock()
                n_chars += len(piece.answer) + len(piece.thought)
                if n_chars > _MOST_TEXT_CHARS:
                    raise DownloadError(f"{self._host}: the answer does not end")
                yield piece
                if piece.finish and not is_over:
                    is_over = True
                    self._until_s = self._clock() + self._limits.linger_s
                    if self._web is not None:
                        self._web.hurry(self._limits.linger_s)
        except DownloadError:
            if not is_over:
                raise

    def _send(self, path: str, body: bytes | None, silence_s: float, whole_s: float) -> Response:
        limits, url = self._limits, self._server + path
        self._web = web = Web(self._key, self._host, limits.connecting_s, silence_s, silence_s=silence_s)
        if self.is_cancelled:
            web.give_up()
        self._text_s, self._until_s = self._clock(), self._clock() + whole_s
        response = web.post(url, body, {"Content-Type": "application/json", "Accept": "*/*"})
        if response.status != 200:
            try:
                raise self._refused(response)
            finally:
                response.close()
        return response

    def _whole(self, response: Response) -> Any:
        try:
            return parsed(b"".join(self._body(response, _MOST_ANSWER_BYTES)), self._host)
        finally:
            response.close()

    def _body(self, response: Response, most_bytes: int) -> Iterator[bytes]:
        n_bytes = 0
        while piece := response.read(_READ_BYTES):
            n_bytes += len(piece)
            if n_bytes > most_bytes:
                raise DownloadError(f"{self._host}: the answer does not end")
            now_s = self._clock()
            if now_s > self._until_s:
                raise ConnectionCut(f"{self._host}: the answer takes too long")
            yield piece
            if now_s > self._text_s + self._limits.silence_s:
                raise ConnectionCut(f"{self._host}: no word came for {whole_seconds(self._limits.silence_s)}")

    def _refused(self, response: Response) -> DownloadError:
        status, pause_s = response.status, pause_s_of(response.headers)
        if status in REDIRECTS:
            target = host_of(urljoin(response.url, response.headers.get("Location") or ""))
            words = f"redirects to {target}, which is not followed: give the address that it means"
            return DownloadError(f"{self._host}: {words}")
        said = self._said(response)
        when = f" (try again in {whole_seconds(pause_s)})" if pause_s else ""
        return StatusError(f"{self._host}: {self._reason(status, said)}{when}", status, pause_s)

    def _reason(self, status: int, said: str) -> str:
        more = f": {said}" if said else ""
        if status in (401, 403):
            if not self._key:
                return f"asks for a key: set {VARIABLE}"
            if not self._is_private:
                return "asks for a key, which is not sent unencrypted to another machine (use https or an SSH tunnel)"
            return f"does not accept the key{more}"
        if status == 404:
            return f"not found{more}" if said else "there is nothing: is the address right? It usually ends in /v1"
        if status == 429:
            return f"too many requests{more}"
        return f"answers with status {status}{more}"

    def _said(self, response: Response) -> str:
        """Return what the body of a refusal says, as far as it comes soon; "" where that is nothing for people."""
        if self._web is not None:
            self._web.hurry(self._limits.linger_s)
        self._until_s = self._clock() + self._limits.linger_s
        try:
            return self._words(self._whole(response))
        except DownloadError:
            return ""

    def _words(self, answer: Any) -> str:
        found = answer.get("error", answer) if isinstance(answer, dict) else answer
        for name in ("message", "detail", "error"):
            found = found.get(name, found) if isinstance(found, dict) else found
        words = text_of(found)[:2000]
        return clean_line(words.replace(self._key, "[the key]") if self._key else words, 160)


def _listed(entry: dict[str, Any]) -> Listed:
    name = text_of(entry.get("id"))
    holders = (entry, table_in(entry, "meta"))
    sizes = (count_of(holder.get(key)) for holder in holders for key in _CONTEXT_NAMES)
    is_name = 0 < len(name) <= _MOST_NAME_CHARS and name.isprintable()
    return Listed(name if is_name else "", next(filter(None, sizes), 0))


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
    usage, timings = table_in(event, "usage"), table_in(event, "timings")
    if not usage and not timings:
        return None
    milliseconds: Any = timings.get("prompt_ms")
    is_time = isinstance(milliseconds, (int, float)) and 0 < milliseconds < _MOST_COUNT
    cached = count_of(table_in(usage, "prompt_tokens_details").get("cached_tokens"))
    return Figures(
        count_of(usage.get("prompt_tokens")),
        cached if cached is not None else count_of(timings.get("cache_n")),
        count_of(usage.get("completion_tokens")),
        float(milliseconds) / 1000 if is_time else None,
    )


VARIABLE = "JALOPY_SERVER_KEY"
SERVICE = "jalopy"
"""Under this name, and the server's host and port, a keyring has the key."""
_SOUND = re.compile(r"[!-~]{1,4096}")


def find_key(host: str) -> str:
    """Return the key for a server; "" for none. Raises Refusal: it cannot be a key. The line holds nothing of it."""
    given, source = os.environ.get(VARIABLE, "").strip(), VARIABLE
    if not given:
        given, source = _from_keyring(host).strip(), "the keyring"
    if given and not _SOUND.fullmatch(given):
        raise Refusal(f"the key in {source} holds characters that no key has", exit_codes.USAGE)
    return given


def _from_keyring(host: str) -> str:
    """Ask the system's keyring, where the package for it is installed and a keyring is open."""
    with suppress(Exception):  # no package, no keyring, a locked one: the server says whether it needs a key
        import keyring

        return keyring.get_password(SERVICE, host) or ""
    return ""


def served_models(server: str) -> list[ModelEntry]:
    """Ask a server which models it computes. Raises Refusal: it does not say, or its key cannot be one."""
    asked = RemoteModel(server_address(server))
    return [
        ModelEntry(
            Path(),
            clean_line(one.name, 60),
            asked.host,
            n_parts=0,
            context_length=one.n_ctx,
            served=RemoteModel(asked.server, one.name),
        )
        for one in Exchange(asked, find_key(asked.host)).models()
    ]

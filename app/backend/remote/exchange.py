"""Request to a server and its answer: sent once, never redirected to another host, limited in bytes
and time.

Every failure is one line. It contains the server's words, cleaned and without the key. The type of
each field is checked before it is used; a field of another type counts as absent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urljoin

from app.backend.remote.event_stream import MAX_ANSWER_BYTES, decompressed, events, parse_json
from app.backend.remote.keys import VARIABLE
from app.backend.remote.picture_parts import has_pictures
from app.backend.remote.reply_chunks import ReplyChunk, error_text, find_error, parse_chunk
from app.backend.remote.returned_fields import without_returned_fields
from app.program.remote_model import RemoteModel
from app.program.web import MOST_REDIRECTS, REDIRECTS, Response, Web, next_on_same_host, table_in
from app.program.web_refusals import ConnectionCut, DownloadError, StatusError, host_of, pause_s_of
from app.text.clean_text import clean_line
from app.text.figures import whole_seconds
from app.text.record import record

_MAX_STREAM_BYTES = 64 << 20
_MAX_TEXT_CHARS = 4 << 20
"""Limit on the text of a reply: about the length of a context of a million tokens."""
_READ_BYTES = 1 << 16
_SUCCESS = range(200, 204)
"""Statuses with an answer in the body; some servers send 201 (created)."""
_MISUNDERSTOOD_STATUSES = (400, 415, 422, 500, 501)
"""Statuses of servers that do not expect a field, such as a picture."""
_SEE_OTHER = 303
"""Status of a redirect to a page with an explanation."""
_JSON_OBJECT = "json_object"
"""Type of form that servers mention when they refuse ``json_schema``. They accept it with a
schema."""
_WITHHELD = ("content_filter", "safety", "prohibited_content", "recitation", "blocklist")
"""Reasons of an end that withholds the rest of a reply."""


@record
class Limits:
    """Limits on times, in seconds."""

    connecting_s: float = 10.0
    """Time of each step of connecting."""
    listing_s: float = 30.0
    """Time of an answer without computation."""
    silence_s: float = 600.0
    """Time between two pieces of a reply: before the first, the server reads the prompt and may
    answer other requests."""
    reply_s: float = 4 * 3600.0
    """Time of a whole reply."""
    linger_s: float = 5.0
    """Time for the figures after the end of a reply."""


class Exchange:
    """A request, which any thread may cancel.

    Args:
        model: The model, with the address of its server.
        key: Key for the server. It is sent only where nobody on the way can read it.
        limits: Limits on times.
    """

    def __init__(
        self,
        model: RemoteModel,
        key: str = "",
        limits: Limits = Limits(),  # noqa: B008 - a constant
    ) -> None:
        self.model = model
        self._server = model.server
        self.host = model.host
        self._key = key
        self._is_private = model.is_private
        self._limits = limits
        self.is_cancelled = False
        self._web: Web | None = None
        self._until_s = 0.0
        """Time until which the whole answer must arrive."""
        self._text_s = 0.0
        """Time of the last text."""

    def cancel(self) -> None:
        """End the request."""
        self.is_cancelled = True
        if self._web is not None:
            self._web.give_up()

    def fetch(self, path: str) -> Any:
        """Return an answer without computation.

        Raises:
            DownloadError: There is no valid answer.
        """
        limit_s = self._limits.listing_s
        with closing(self._send(path, None, limit_s, limit_s)) as response:
            return parse_json(b"".join(self._body(response, MAX_ANSWER_BYTES)), self.host)

    def reply_chunks(self, path: str, request: Mapping[str, Any]) -> Iterator[ReplyChunk]:
        """Send a request, and yield the chunks of the reply. The last may have only figures.

        Raises:
            DownloadError: The server refuses, or the reply breaks off (ConnectionCut).
        """
        try:
            response = self._send_request(path, request)
        except StatusError as error:
            if _JSON_OBJECT in str(error):
                changed_request = _with_json_object(request)
            else:
                changed_request = without_returned_fields(request, error)
            if changed_request is None:
                raise self._with_advice(error, request) from None
            response = self._send_request(path, changed_request)
        with closing(response):
            yield from self._checked_chunks(
                events(self._body(response, _MAX_STREAM_BYTES), self.host)
            )

    def _send_request(self, path: str, request: Mapping[str, Any]) -> Response:
        body = json.dumps(request).encode()
        return self._send(path, body, self._limits.silence_s, self._limits.reply_s)

    def _with_advice(self, error: StatusError, request: Mapping[str, Any]) -> StatusError:
        shows_pictures = has_pictures(request.get("messages") or ())
        if shows_pictures and error.status in _MISUNDERSTOOD_STATUSES:
            advice = (
                "perhaps this model sees no pictures: choose one that does, or start a new chat"
            )
            return StatusError(f"{error} ({advice})", error.status, error.pause_s)
        if "tools" not in request or "tool" not in str(error).lower():
            return error
        return StatusError(f"{error} (/tools off asks without them)", error.status, error.pause_s)

    def _checked_chunks(self, values: Iterator[Any]) -> Iterator[ReplyChunk]:
        """Yield a chunk for each object, until the reply has ended and its figures have arrived."""
        n_chars = 0
        has_ended = False
        has_unknown = False
        has_deltas = False
        until_s = self._until_s
        try:
            for value in values:
                if (error := find_error(value)) is not None:
                    text = self._clean_error(error) or "the server broke off"
                    raise DownloadError(f"{self.host}: {text}")

                chunk = parse_chunk(value)
                if chunk.is_complete and has_deltas:  # It repeats the whole reply.
                    chunk = ReplyChunk(finish=chunk.finish, figures=chunk.figures)
                size = len(chunk.answer) + len(chunk.thought) + len(chunk.calls)
                has_unknown = has_unknown or chunk.is_unknown
                has_deltas = has_deltas or (size > 0 and not chunk.is_complete)
                n_chars += size
                if n_chars > _MAX_TEXT_CHARS:
                    raise DownloadError(f"{self.host}: the answer does not end")
                if size:
                    self._text_s = time.monotonic()
                if size and has_ended and not chunk.finish:
                    # The end was announced too early.
                    has_ended = False
                    self._set_patience(self._limits.silence_s, until_s)
                yield chunk

                if chunk.finish.lower() in _WITHHELD:
                    reason = clean_line(chunk.finish, 40)
                    raise DownloadError(f"{self.host}: withheld the rest of the answer ({reason})")
                if chunk.finish and not has_ended:
                    has_ended = True
                    self._set_patience(self._limits.linger_s)
        except DownloadError:
            if not has_ended:
                raise
        if not n_chars and (has_unknown or not has_ended):
            raise DownloadError(f"{self.host}: sends no answer, or one in an unknown format")

    def _set_patience(self, silence_s: float, until_s: float | None = None) -> None:
        """Limit the wait for the next byte, and for the rest of the answer.

        Args:
            silence_s: Time for the next byte.
            until_s: Time until which the rest must arrive; None for the same as ``silence_s``.
        """
        if until_s is None:
            until_s = time.monotonic() + silence_s
        self._until_s = until_s
        if self._web is not None:
            self._web.hurry(silence_s)

    def _send(self, path: str, body: bytes | None, silence_s: float, limit_s: float) -> Response:
        self._web = web = Web(
            self._key, self.host, self._limits.connecting_s, silence_s, silence_s=silence_s
        )
        if self.is_cancelled:
            web.give_up()
        self._text_s = time.monotonic()
        self._until_s = time.monotonic() + limit_s
        response = self._post(web, self._server + path, body)
        if response.status not in _SUCCESS:
            with closing(response):
                raise self._refusal(response)
        return response

    def _post(self, web: Web, url: str, body: bytes | None) -> Response:
        """Send a request, and follow redirects on the same host: a missing slash needs that."""
        headers = {"Content-Type": "application/json", "Accept": "*/*"}
        response = web.post(url, body, headers)
        for _ in range(MOST_REDIRECTS):
            if response.status not in REDIRECTS or response.status == _SEE_OTHER:
                break
            try:
                url = next_on_same_host(url, response.headers.get("Location"))
            except DownloadError:
                break
            response.close()
            response = web.post(url, body, headers)
        return response

    def _body(self, response: Response, max_bytes: int) -> Iterator[bytes]:
        n_bytes = 0
        encoding = response.headers.get("Content-Encoding") or ""
        for piece in decompressed(self._raw_body(response), encoding, self.host):
            n_bytes += len(piece)
            if n_bytes > max_bytes:
                raise DownloadError(f"{self.host}: the answer does not end")
            yield piece

    def _raw_body(self, response: Response) -> Iterator[bytes]:
        while piece := response.read(_READ_BYTES):
            now_s = time.monotonic()
            if now_s > self._until_s:
                raise ConnectionCut(f"{self.host}: the answer takes too long")
            yield piece
            if now_s > self._text_s + self._limits.silence_s:
                silence = whole_seconds(self._limits.silence_s)
                raise ConnectionCut(f"{self.host}: no text came for {silence}")

    def _refusal(self, response: Response) -> DownloadError:
        status = response.status
        if status in REDIRECTS:
            return DownloadError(f"{self.host}: redirects to {_describe_target(response)}")
        pause_s = pause_s_of(response.headers)
        message = f"{self.host}: {self._reason(status, self._read_error_text(response))}"
        if pause_s:
            message += f" (try again in {whole_seconds(pause_s)})"
        return StatusError(message, status, pause_s)

    def _reason(self, status: int, text: str) -> str:
        """Return the reason of a refusal.

        Args:
            status: HTTP status.
            text: The server's words; "" if there are none.
        """
        details = f": {text}" if text else ""
        if status in (401, 403):
            if not self._key:
                return f"asks for a key: set {VARIABLE}"
            if not self._is_private:
                return (
                    "asks for a key, which is not sent unencrypted to another machine (use https "
                    "or an SSH tunnel)"
                )
            return f"does not accept the key{details}"
        if status == 404:
            if text:
                return f"not found{details}"
            return "there is nothing: is the address right? It usually ends in /v1"
        if status == 429:
            return f"too many requests{details}"
        return f"answers with status {status}{details}"

    def _read_error_text(self, response: Response) -> str:
        """Return the text for people in the body of a refusal; "" if there is none or it takes too
        long."""
        self._set_patience(self._limits.linger_s)
        has_type = bool(response.headers.get("Content-Type"))
        is_plain = has_type and response.headers.get_content_type() == "text/plain"
        try:
            body = b"".join(self._body(response, MAX_ANSWER_BYTES))
            if is_plain and body.lstrip()[:1] not in (b"{", b"[", b"<"):
                return self._clean_error(body.decode("utf-8", "replace"))
            return self._clean_error(parse_json(body, self.host))
        except DownloadError:
            return ""

    def _clean_error(self, error: Any) -> str:
        """Return the text of an error as one line without the key."""
        text = error_text(error)
        if self._key:
            text = text.replace(self._key, "[the key]")
        return clean_line(text, 160)


def _with_json_object(request: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a request with its schema in the format of llama-cpp-python; None without a schema."""
    schema = table_in(table_in(request.get("response_format"), "json_schema"), "schema")
    if not schema:
        return None
    return {**request, "response_format": {"type": _JSON_OBJECT, "schema": schema}}


def _describe_target(response: Response) -> str:
    """Describe where a redirect leads."""
    location = response.headers.get("Location") or ""
    try:
        host = host_of(urljoin(response.url, location))
    except ValueError:
        return "an invalid address"
    return f"{host or 'nowhere'}, which is not followed: use that address instead"

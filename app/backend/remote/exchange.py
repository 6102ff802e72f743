"""One request to a server and its answer: sent once, never led elsewhere, bounded in bytes and
time.

Whatever goes wrong is one line. What a server says is part of it, cleaned and without the key that
it may repeat. Nothing of an object is believed before its type is looked at; what does not fit is
as if it were not there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urljoin

from app.backend.remote.keys import VARIABLE
from app.backend.remote.pieces import Delta, error_in, piece_of, words_of
from app.backend.remote.returned import without_fields
from app.backend.remote.stream import MOST_ANSWER_BYTES, events, parsed, unpacked
from app.program.remote_model import RemoteModel
from app.program.web import MOST_REDIRECTS, REDIRECTS, Response, Web, next_on_same_host, table_in
from app.program.web_refusals import ConnectionCut, DownloadError, StatusError, host_of, pause_s_of
from app.text.clean_text import clean_line
from app.text.figures import whole_seconds
from app.text.record import record

_MOST_STREAM_BYTES = 64 << 20
_MOST_TEXT_CHARS = 4 << 20
"""A context of a million tokens has about as many."""
_READ_BYTES = 1 << 16
_ANSWERS = range(200, 204)
"""Statuses with a body that is the answer: some servers create one (201)."""
_SEE_OTHER = 303
"""Status of a redirect to a page that says more."""
_OLD_FORM = "json_object"
"""A form that servers name where they refuse ``json_schema``; with a schema next to it they follow
that."""
_WITHHELD = ("content_filter", "safety", "prohibited_content", "recitation", "blocklist")


@record
class Limits:
    """Seconds that things may take."""

    connecting_s: float = 10.0
    """Each step of making a connection."""
    listing_s: float = 30.0
    """A whole answer that nothing is computed for."""
    silence_s: float = 600.0
    """Until more of a reply comes: a long prompt is read before its first word, and others may be
    served first."""
    whole_s: float = 4 * 3600.0
    """A reply from its first byte to its last."""
    linger_s: float = 5.0
    """Limit on the figures that may follow the end of a reply."""


class Exchange:
    """One request, which any thread may cancel.

    ``key``: of the server; sent where no one on the way can read it.
    """

    def __init__(
        self,
        model: RemoteModel,
        key: str = "",
        limits: Limits = Limits(),  # noqa: B008 - it does not change
    ) -> None:
        self.model = model
        self._server = model.server
        self.host = model.host
        self._key = key
        self._is_private = model.is_private
        self._limits = limits
        self.is_cancelled = False
        self._web: Web | None = None
        self._until_s = self._text_s = 0.0
        """When all is to be there, and when the last of it came that counts."""

    def cancel(self) -> None:
        """End it."""
        self.is_cancelled = True
        if self._web is not None:
            self._web.give_up()

    def answer(self, path: str) -> Any:
        """Ask for an object that nothing is computed for. Raises DownloadError: there is none."""
        with closing(
            self._send(path, None, self._limits.listing_s, self._limits.listing_s)
        ) as response:
            return parsed(b"".join(self._body(response, MOST_ANSWER_BYTES)), self.host)

    def pieces(self, path: str, request: Mapping[str, Any]) -> Iterator[Delta]:
        """Ask for a reply; the last piece may have figures alone.

        Raises ConnectionCut, or another DownloadError.
        """
        try:
            response = self._ask(path, request)
        except StatusError as error:
            if _OLD_FORM in str(error):
                other = _old_form(request)
            else:
                other = without_fields(request, error)
            if other is None:
                raise self._hinted(error, request) from None
            response = self._ask(path, other)
        with closing(response):
            yield from self._checked(events(self._body(response, _MOST_STREAM_BYTES), self.host))

    def _ask(self, path: str, request: Mapping[str, Any]) -> Response:
        return self._send(
            path, json.dumps(request).encode(), self._limits.silence_s, self._limits.whole_s
        )

    def _hinted(self, error: StatusError, request: Mapping[str, Any]) -> StatusError:
        if "tools" not in request or "tool" not in str(error).lower():
            return error
        return StatusError(f"{error} (/tools off asks without them)", error.status, error.pause_s)

    def _checked(self, found: Iterator[Any]) -> Iterator[Delta]:
        """Yield what each object says, until the reply has ended and its figures are there."""
        n_chars = 0
        is_over = False
        is_unknown = False
        has_deltas = False
        until_s = self._until_s
        try:
            for event in found:
                if (error := error_in(event)) is not None:
                    raise DownloadError(
                        f"{self.host}: {self._words(error) or 'the server broke off'}"
                    )
                piece = piece_of(event)
                if piece.is_whole and has_deltas:  # it says once more what has come
                    piece = Delta(finish=piece.finish, figures=piece.figures)
                said = len(piece.answer) + len(piece.thought) + len(piece.calls)
                is_unknown = is_unknown or piece.is_unknown
                has_deltas = has_deltas or bool(said and not piece.is_whole)
                n_chars += said
                if n_chars > _MOST_TEXT_CHARS:
                    raise DownloadError(f"{self.host}: the answer does not end")
                if said:
                    self._text_s = time.monotonic()
                if said and is_over and not piece.finish:  # what said that it was over was wrong
                    is_over = False
                    self._wait(self._limits.silence_s, until_s)
                yield piece
                if piece.finish.lower() in _WITHHELD:
                    raise DownloadError(
                        f"{self.host}: withheld the rest of the answer "
                        f"({clean_line(piece.finish, 40)})"
                    )
                if piece.finish and not is_over:
                    is_over = True
                    self._wait(self._limits.linger_s)
        except DownloadError:
            if not is_over:
                raise
        if not n_chars and (is_unknown or not is_over):
            raise DownloadError(f"{self.host}: sends no answer, or one in a form that is not known")

    def _wait(self, silence_s: float, until_s: float | None = None) -> None:
        """Wait so long for the next byte, and until then for all of it."""
        if until_s is None:
            self._until_s = time.monotonic() + silence_s
        else:
            self._until_s = until_s
        if self._web is not None:
            self._web.hurry(silence_s)

    def _send(self, path: str, body: bytes | None, silence_s: float, whole_s: float) -> Response:
        limits = self._limits
        url = self._server + path
        self._web = web = Web(
            self._key, self.host, limits.connecting_s, silence_s, silence_s=silence_s
        )
        if self.is_cancelled:
            web.give_up()
        self._text_s = time.monotonic()
        self._until_s = time.monotonic() + whole_s
        response = self._posted(web, url, body)
        if response.status not in _ANSWERS:
            with closing(response):
                raise self._refused(response)
        return response

    def _posted(self, web: Web, url: str, body: bytes | None) -> Response:
        """Send a request.

        A request that is redirected on the same host is sent again there: a missing slash needs
        that.
        """
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

    def _body(self, response: Response, most_bytes: int) -> Iterator[bytes]:
        n_bytes = 0
        encoding = response.headers.get("Content-Encoding") or ""
        for piece in unpacked(self._raw_body(response), encoding, self.host):
            n_bytes += len(piece)
            if n_bytes > most_bytes:
                raise DownloadError(f"{self.host}: the answer does not end")
            yield piece

    def _raw_body(self, response: Response) -> Iterator[bytes]:
        while piece := response.read(_READ_BYTES):
            now_s = time.monotonic()
            if now_s > self._until_s:
                raise ConnectionCut(f"{self.host}: the answer takes too long")
            yield piece
            if now_s > self._text_s + self._limits.silence_s:
                raise ConnectionCut(
                    f"{self.host}: no word came for {whole_seconds(self._limits.silence_s)}"
                )

    def _refused(self, response: Response) -> DownloadError:
        status = response.status
        pause_s = pause_s_of(response.headers)
        if status in REDIRECTS:
            return DownloadError(f"{self.host}: redirects to {_target_of(response)}")
        said = self._said(response)
        if pause_s:
            when = f" (try again in {whole_seconds(pause_s)})"
        else:
            when = ""
        return StatusError(f"{self.host}: {self._reason(status, said)}{when}", status, pause_s)

    def _reason(self, status: int, said: str) -> str:
        if said:
            more = f": {said}"
        else:
            more = ""
        if status in (401, 403):
            if not self._key:
                return f"asks for a key: set {VARIABLE}"
            if not self._is_private:
                return (
                    "asks for a key, which is not sent unencrypted to another machine (use https "
                    "or an SSH tunnel)"
                )
            return f"does not accept the key{more}"
        if status == 404:
            if said:
                return f"not found{more}"
            return "there is nothing: is the address right? It usually ends in /v1"
        if status == 429:
            return f"too many requests{more}"
        return f"answers with status {status}{more}"

    def _said(self, response: Response) -> str:
        """Return what the body of a refusal says, as far as it comes soon; "" where that is nothing
        for people."""
        self._wait(self._limits.linger_s)
        is_text = response.headers.get_content_type() == "text/plain" and response.headers.get(
            "Content-Type"
        )
        try:
            body = b"".join(self._body(response, MOST_ANSWER_BYTES))
            if is_text and body.lstrip()[:1] not in (b"{", b"[", b"<"):
                return self._words(body.decode("utf-8", "replace"))
            return self._words(parsed(body, self.host))
        except DownloadError:
            return ""

    def _words(self, answer: Any) -> str:
        words = words_of(answer)
        return clean_line(words.replace(self._key, "[the key]") if self._key else words, 160)


def _old_form(request: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a request for a form as llama-cpp-python takes it; None where none is asked for."""
    schema = table_in(table_in(request.get("response_format"), "json_schema"), "schema")
    if schema:
        return {**request, "response_format": {"type": _OLD_FORM, "schema": schema}}
    return None


def _target_of(response: Response) -> str:
    """Return where a redirect leads, in words."""
    location = response.headers.get("Location") or ""
    try:
        host = host_of(urljoin(response.url, location))
    except ValueError:
        return "an address that is none"
    return f"{host or 'nowhere'}, which is not followed: give the address that it means"

"""A server of tools at an address: each message is a request of its own, by the protocol's
streamable HTTP.

An answer is an object, or a stream of events in which the server may first ask something itself.
Nothing is read between two requests: what a server wants to say by itself waits, or is lost, as the
protocol allows (2025-06-18).
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from app.backend.remote.keys import find_key
from app.backend.remote.pieces import words_of
from app.backend.remote.stream import NoJsonError, events, unpacked
from app.program.refusals import Refusal
from app.program.remote_model import is_private
from app.program.settings import ToolServerSetting
from app.program.web import MOST_REDIRECTS, REDIRECTS, Response, Web, next_on_same_host
from app.program.web_refusals import DownloadError, pause_s_of
from app.text.clean_text import clean_line
from app.text.figures import whole_seconds
from app.tools.mcp.server import ToolServerError
from app.tools.mcp.transport import (
    LOOK_S,
    Fault,
    Messages,
    RequestRefused,
    SessionLost,
    StoppedError,
    Wait,
    too_much,
)

_SESSION = "Mcp-Session-Id"
_VERSION = "MCP-Protocol-Version"
_CONNECTING_S = 10.0
_LATER_S = 1.0
"""A connection waits longer than a request, which then ends by the words for that."""
_ENDING_S = 5.0
_LEAVING_S = 0.3
"""Limits on saying that a session is over, and on waiting for that; a server forgets it sooner or
later."""
_READ_BYTES = 1 << 16
_MOST_ID_CHARS = 1024
_MOST_VERSION_CHARS = 40
_MOST_REFUSAL_BYTES = 1 << 20
"""Limit on the body of a refusal."""
_MOST_WORDS_CHARS = 160
_BUSY = (429, 503)
"""Statuses of servers that want to be asked again later; nothing of the request has happened."""
_USUAL_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_MOST_ATTEMPTS = 4
_NO_ANSWERS = (202, 204, 205)
"""Statuses that have no answer in them."""
_SEE_OTHER = 303
_OLDER_TRANSPORT = (404, 405)
_LOST = re.compile(r"session|not initialized", re.IGNORECASE)
"""Words of servers that refuse a request because they do not know its session."""
_ACCEPTED = "application/json, text/event-stream"


def at_address(setting: ToolServerSetting) -> ToolAddress:
    """Return a server of the settings, with its key of the environment or the keyring."""
    try:
        key = find_key(urlsplit(setting.url).netloc, setting.key_variable)
    except Refusal as refusal:
        raise ToolServerError(f"tool server {setting.name}: {refusal}") from None
    return ToolAddress(setting.url, dict(setting.headers), key)


class ToolAddress:
    """A session with a server from ``open`` to ``close``.

    Args:
        url: of http or https.
        headers: that go with each request.
        key: sent as a bearer token, to this host alone, where no one on the way can read it.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, key: str = "") -> None:
        parts = urlsplit(url)
        self._first_url = url
        """Address of the settings."""
        self._url = url
        """Address on the same host that redirects have led to since ``open``."""
        self._host = parts.netloc
        self._headers = dict(headers or {})
        self._key = key
        self._is_private = is_private(parts)
        self._session = self._version = ""
        self.is_open = False

    @property
    def shown(self) -> str:
        """Address of the server, as the settings have it."""
        return clean_line(self._first_url, 80)

    def open(self) -> None:
        """Begin without a session; the answer to the first message may name one."""
        if not self._is_private and self._headers:
            raise Fault(
                "is not asked: its headers would go to another machine unencrypted; use https"
            )
        self._session = self._version = ""
        self._url = self._first_url
        self.is_open = True

    def note_version(self, version: str) -> None:
        """Name this version of the protocol from now on. Raises Fault: no header can hold it."""
        if not _is_header_word(version, _MOST_VERSION_CHARS):
            raise Fault(
                "names a version of the protocol that is none: "
                f"{clean_line(version, _MOST_VERSION_CHARS)}"
            )
        self._version = version

    def close(self) -> None:
        """Say that the session is over, if there is one; who leaves waits hardly for it."""
        if self._session:
            ending = threading.Thread(
                target=_end_session, args=(self._web(_ENDING_S), self._url, self._all_headers())
            )
            ending.daemon = True
            ending.start()
            ending.join(_LEAVING_S)
        self.is_open = False
        self._session = ""
        self._version = ""

    def _web(self, patience_s: float) -> Web:
        return Web(
            self._key, self._host, min(_CONNECTING_S, patience_s), patience_s, silence_s=patience_s
        )

    def send(self, message: Mapping[str, Any], wait: Wait) -> None:
        """Send a message that has no answer.

        What comes back is not read, and no refusal but of the session counts.
        """
        with self._posted(message, wait) as response:
            if self._has_lost_session(response.status, ""):
                raise self._lost("")

    def ask(self, message: Mapping[str, Any], wait: Wait, most_bytes: int) -> Iterator[Messages]:
        """Send a message and yield what comes back, an object at a time."""
        with self._posted(message, wait) as response:
            if not 200 <= response.status < 300:
                yield [self._refusal(response, message)]
                return
            if response.status in _NO_ANSWERS:
                raise Fault(f"takes the request and gives no answer (status {response.status})")
            session = response.headers.get(_SESSION) or ""
            if session and not self._session:
                if not _is_header_word(session, _MOST_ID_CHARS):
                    raise Fault("names its session in a way that cannot be said again")
                self._session = session
            try:
                for value in events(self._body(response, most_bytes), self._host, most_bytes):
                    if isinstance(value, dict):
                        yield [value]
            except NoJsonError as error:
                raise Fault(
                    f"does not speak the Model Context Protocol (it sends {error.kind})"
                ) from None

    @contextmanager
    def _posted(self, message: Mapping[str, Any], wait: Wait) -> Iterator[Response]:
        """Send a message; within the block its answer may be read.

        A stop or the end of the time cuts the reading.

        Redirects on the same host are followed, and a server that is busy is asked again.
        """
        n_redirects = 0
        n_attempts = 0
        while True:
            with self._posted_once(message, wait) as response:
                if response.status in REDIRECTS:
                    n_redirects += 1
                    self._url = self._redirected(response, n_redirects)
                    continue
                n_attempts += 1
                pause_s = pause_s_of(response.headers)
                if (
                    response.status not in _BUSY
                    or n_attempts >= _MOST_ATTEMPTS
                    or (pause_s is None and response.status != _BUSY[0])
                ):
                    yield response
                    return
            self._pause(_USUAL_PAUSE_S if pause_s is None else pause_s, wait)

    def _redirected(self, response: Response, n_redirects: int) -> str:
        """Return the address that a redirect leads to.

        Raises:
            Fault: it is another host, or redirects do not end.
        """
        if n_redirects > MOST_REDIRECTS:
            raise Fault(f"redirects more than {MOST_REDIRECTS} times")
        if response.status == _SEE_OTHER:
            raise Fault("redirects to a page (status 303): give the address of its tools")
        try:
            return next_on_same_host(response.url, response.headers.get("Location"))
        except DownloadError as error:
            raise Fault(f"redirects to another address, which is not followed: {error}") from None

    def _pause(self, pause_s: float, wait: Wait) -> None:
        """Wait before a busy server is asked again.

        Raises:
            Fault: the wait would be too long.
            StoppedError: the user ends it.
        """
        if pause_s > min(_LONGEST_PAUSE_S, wait.left_s):
            raise RequestRefused(f"has too many requests: try again in {whole_seconds(pause_s)}")
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s:
            wait.look()
            time.sleep(LOOK_S)

    @contextmanager
    def _posted_once(self, message: Mapping[str, Any], wait: Wait) -> Iterator[Response]:
        wait.look()
        web = self._web(wait.left_s + _LATER_S)
        headers = {"Content-Type": "application/json", "Accept": _ACCEPTED, **self._all_headers()}
        is_over = threading.Event()
        cut_by = list[Exception]()
        watcher = threading.Thread(target=_watch, args=(web, wait, is_over, cut_by), daemon=True)
        watcher.start()
        try:
            response = web.post(self._url, json.dumps(message).encode(), headers)
            try:
                yield response
            finally:
                response.close()
        except DownloadError as error:
            is_over.set()
            watcher.join()
            raise (cut_by[0] if cut_by else Fault(f"cannot be asked: {error}")) from None
        finally:
            is_over.set()

    def _all_headers(self) -> dict[str, str]:
        own = {_SESSION: self._session, _VERSION: self._version}
        return {**self._headers, **{name: value for name, value in own.items() if value}}

    def _refusal(self, response: Response, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the error of the protocol that a refused request has as its answer.

        Raises:
            Fault: it has none.
        """
        status = response.status
        answer = self._refusal_body(response)
        if isinstance(answer, dict):
            error = answer.get("error")
        else:
            error = None
        words = clean_line(words_of(answer), _MOST_WORDS_CHARS)
        if words:
            more = f": {words}"
        else:
            more = ""
        if self._has_lost_session(status, words):
            raise self._lost(more)
        if status in (401, 403):
            raise Fault(self._wanted_key() + more)
        if isinstance(answer, dict) and "jsonrpc" in answer and error:
            return {**answer, "id": message.get("id")}
        if status in _OLDER_TRANSPORT and message.get("method") == "initialize":
            more += (
                " (is it the older transport, HTTP+SSE? Streamable HTTP is needed; "
                "its address often ends in /mcp)"
            )
        raise RequestRefused(f"answers with status {status}{more}")

    def _refusal_body(self, response: Response) -> Any:
        """Return the JSON of a refusal, or its text; "" where it has none that people can read."""
        try:
            body = b"".join(self._body(response, _MOST_REFUSAL_BYTES))
        except (DownloadError, Fault):
            return ""
        try:
            for value in events([body], self._host):
                return value
        except DownloadError:
            is_text = response.headers.get_content_type() == "text/plain"
            if is_text and not body.lstrip().startswith(b"<"):
                return body.decode("utf-8", "replace")
            return ""
        return ""

    def _wanted_key(self) -> str:
        """Return what is wrong where a server does not let this program in."""
        if not self._key:
            return "asks for a key or a sign-in (key_variable names the variable of a key)"
        if not self._is_private:
            return "asks for a key, which is not sent unencrypted to another machine (use https)"
        return "does not accept the key"

    def _has_lost_session(self, status: int, words: str) -> bool:
        """Whether a refusal says that the session is not known.

        It says so by its status, or by status 400 and words.
        """
        return bool(self._session) and (
            status == 404 or (status == 400 and _LOST.search(words) is not None)
        )

    def _lost(self, more: str) -> SessionLost:
        self._session = ""
        return SessionLost(f"has lost the session{more}")

    def _body(self, response: Response, most_bytes: int) -> Iterator[bytes]:
        n_bytes = 0
        encoding = response.headers.get("Content-Encoding") or ""
        for piece in unpacked(iter(lambda: response.read(_READ_BYTES), b""), encoding, self._host):
            n_bytes += len(piece)
            if n_bytes > most_bytes:
                raise too_much(most_bytes)
            yield piece


def _is_header_word(text: str, most_chars: int) -> bool:
    """Whether a header can hold a text of a server's: a word of ASCII."""
    return 0 < len(text) <= most_chars and all("!" <= char <= "~" for char in text)


def _end_session(web: Web, url: str, headers: Mapping[str, str]) -> None:
    with suppress(DownloadError):
        web.ask(url, headers, method="DELETE").close()


def _watch(web: Web, wait: Wait, is_over: threading.Event, cut_by: list[Exception]) -> None:
    """Cut a request when the user stops it or its time is over; what reads it learns of that by the
    cut."""
    while not is_over.wait(LOOK_S):
        try:
            wait.look()
        except (Fault, StoppedError) as reason:
            cut_by.append(reason)
            web.give_up()
            return

"""A tool server at an address, by the protocol's streamable HTTP: each message is a request.

An answer is an object, or a stream of events in which the server may first send requests itself.
Nothing is read between two requests: messages that a server sends on its own wait or are lost, as
the protocol allows (2025-06-18).
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

from app.backend.remote.event_stream import NotJsonError, decompressed, events
from app.backend.remote.keys import find_key
from app.backend.remote.reply_chunks import error_text
from app.program.refusals import Refusal
from app.program.remote_model import is_private
from app.program.settings import ToolServerSetting
from app.program.web import MOST_REDIRECTS, REDIRECTS, Response, Web, next_on_same_host
from app.program.web_refusals import DownloadError, pause_s_of
from app.text.clean_text import clean_line
from app.text.figures import whole_seconds
from app.tools.mcp.server import ToolServerError
from app.tools.mcp.transport import (
    CHECK_PERIOD_S,
    Fault,
    Messages,
    RequestRefused,
    SessionLost,
    StoppedError,
    Wait,
    too_large,
)

_SESSION = "Mcp-Session-Id"
_VERSION = "MCP-Protocol-Version"
_CONNECTING_S = 10.0
_EXTRA_PATIENCE_S = 1.0
"""Time that a connection waits longer than its request, whose own error is better."""
_END_SESSION_S = 5.0
"""Limit on the request that ends a session."""
_END_SESSION_WAIT_S = 0.3
"""Limit on waiting for that request: a server forgets its sessions in any case."""
_READ_BYTES = 1 << 16
_MAX_ID_CHARS = 1024
_MAX_VERSION_CHARS = 40
_MAX_REFUSAL_BYTES = 1 << 20
"""Limit on the body of a refusal."""
_MAX_ERROR_CHARS = 160
_TOO_MANY_REQUESTS = 429
_BUSY = (_TOO_MANY_REQUESTS, 503)
"""Statuses of busy servers, which have done nothing of the request."""
_DEFAULT_PAUSE_S = 1.0
_MAX_PAUSE_S = 30.0
_MAX_ATTEMPTS = 4
_NO_CONTENT = (202, 204, 205)
"""Statuses without an answer."""
_SEE_OTHER = 303
_OLDER_TRANSPORT = (404, 405)
_SESSION_LOST = re.compile(r"session|not initialized", re.IGNORECASE)
"""Words of servers that refuse a request because they do not know its session."""
_ACCEPTED = "application/json, text/event-stream"


def make_tool_address(setting: ToolServerSetting) -> ToolAddress:
    """Return a tool server of the settings, with its key from the environment or the keyring."""
    try:
        key = find_key(urlsplit(setting.url).netloc, setting.key_variable)
    except Refusal as refusal:
        raise ToolServerError(f"tool server {setting.name}: {refusal}") from None
    return ToolAddress(setting.url, dict(setting.headers), key)


class ToolAddress:
    """Session with a tool server, from ``open`` to ``close``.

    Args:
        url: Address, http or https.
        headers: Headers of each request.
        key: Bearer token. It is sent to this host only, and only where nobody on the way can read
            it.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, key: str = "") -> None:
        parts = urlsplit(url)
        self._configured_url = url
        self._url = url
        """Address on the same host after redirects."""
        self._host = parts.netloc
        self._headers = dict(headers or {})
        self._key = key
        self._is_private = is_private(parts)
        self._session_id = ""
        self._version = ""
        self.is_open = False

    @property
    def label(self) -> str:
        """Address of the server as it is in the settings."""
        return clean_line(self._configured_url, 80)

    def open(self) -> None:
        """Start without a session; the answer to the first message may name one."""
        if not self._is_private and self._headers:
            raise Fault(
                "was not contacted: its headers would go to another machine unencrypted; use https"
            )
        self._session_id = ""
        self._version = ""
        self._url = self._configured_url
        self.is_open = True

    def set_version(self, version: str) -> None:
        """Send a version of the protocol in all further requests.

        Raises:
            Fault: The version does not fit in a header.
        """
        if not _is_header_word(version, _MAX_VERSION_CHARS):
            raise Fault(
                "names an invalid version of the protocol: "
                f"{clean_line(version, _MAX_VERSION_CHARS)}"
            )
        self._version = version

    def close(self) -> None:
        """End the session if there is one, without a long wait."""
        if self._session_id:
            thread = threading.Thread(
                target=_end_session,
                args=(self._web(_END_SESSION_S), self._url, self._all_headers()),
                daemon=True,
            )
            thread.start()
            thread.join(_END_SESSION_WAIT_S)
        self.is_open = False
        self._session_id = ""
        self._version = ""

    def _web(self, patience_s: float) -> Web:
        connecting_s = min(_CONNECTING_S, patience_s)
        return Web(self._key, self._host, connecting_s, patience_s, silence_s=patience_s)

    def send(self, message: Mapping[str, Any], wait: Wait) -> None:
        """Send a message without an answer.

        The response is not read. Only a lost session counts as an error.
        """
        with self._posted(message, wait) as response:
            if self._has_lost_session(response.status, ""):
                raise self._lose_session("")

    def ask(self, message: Mapping[str, Any], wait: Wait, max_bytes: int) -> Iterator[Messages]:
        """Send a message and yield the objects that come back, one at a time."""
        with self._posted(message, wait) as response:
            if not 200 <= response.status < 300:
                yield [self._refusal(response, message)]
                return
            if response.status in _NO_CONTENT:
                raise Fault(f"accepts the request but sends no answer (status {response.status})")
            self._take_session(response)
            try:
                for value in events(self._body(response, max_bytes), self._host, max_bytes):
                    if isinstance(value, dict):
                        yield [value]
            except NotJsonError as error:
                raise Fault(
                    f"does not speak the Model Context Protocol (it sends {error.content})"
                ) from None

    def _take_session(self, response: Response) -> None:
        """Use the session that the first response names."""
        session_id = response.headers.get(_SESSION) or ""
        if not session_id or self._session_id:
            return
        if not _is_header_word(session_id, _MAX_ID_CHARS):
            raise Fault("names a session that cannot be sent back")
        self._session_id = session_id

    @contextmanager
    def _posted(self, message: Mapping[str, Any], wait: Wait) -> Iterator[Response]:
        """Send a message; its response can be read within the block.

        Redirects on the same host are followed, and a busy server is asked again. The user or the
        end of the time interrupts the reading.
        """
        n_redirects = 0
        n_attempts = 0
        while True:
            with self._posted_once(message, wait) as response:
                if response.status in REDIRECTS:
                    n_redirects += 1
                    self._url = self._redirect_target(response, n_redirects)
                    continue
                n_attempts += 1
                pause_s = pause_s_of(response.headers)
                is_final = (
                    response.status not in _BUSY
                    or n_attempts >= _MAX_ATTEMPTS
                    or (pause_s is None and response.status != _TOO_MANY_REQUESTS)
                )
                if is_final:
                    yield response
                    return
            self._pause(_DEFAULT_PAUSE_S if pause_s is None else pause_s, wait)

    def _redirect_target(self, response: Response, n_redirects: int) -> str:
        """Return the address that a redirect leads to.

        Raises:
            Fault: It is on another host, or there are too many redirects.
        """
        if n_redirects > MOST_REDIRECTS:
            raise Fault(f"redirects more than {MOST_REDIRECTS} times")
        if response.status == _SEE_OTHER:
            raise Fault("redirects to a web page (status 303): use the address of its tools")
        try:
            return next_on_same_host(response.url, response.headers.get("Location"))
        except DownloadError as error:
            raise Fault(f"redirects to another address, which is not followed: {error}") from None

    def _pause(self, pause_s: float, wait: Wait) -> None:
        """Wait before asking a busy server again.

        Raises:
            RequestRefused: The pause is too long.
            StoppedError: The user stops it.
        """
        if pause_s > min(_MAX_PAUSE_S, wait.left_s):
            raise RequestRefused(f"has too many requests: try again in {whole_seconds(pause_s)}")
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s:
            wait.check()
            time.sleep(CHECK_PERIOD_S)

    @contextmanager
    def _posted_once(self, message: Mapping[str, Any], wait: Wait) -> Iterator[Response]:
        wait.check()
        web = self._web(wait.left_s + _EXTRA_PATIENCE_S)
        headers = {"Content-Type": "application/json", "Accept": _ACCEPTED, **self._all_headers()}
        is_over = threading.Event()
        reasons: list[Exception] = []
        watcher = threading.Thread(target=_watch, args=(web, wait, is_over, reasons), daemon=True)
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
            if reasons:
                raise reasons[0] from None
            raise Fault(f"cannot be reached: {error}") from None
        finally:
            is_over.set()

    def _all_headers(self) -> dict[str, str]:
        headers = dict(self._headers)
        if self._session_id:
            headers[_SESSION] = self._session_id
        if self._version:
            headers[_VERSION] = self._version
        return headers

    def _refusal(self, response: Response, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the protocol's error in a refused request.

        Raises:
            Fault: There is none.
        """
        status = response.status
        answer = self._refusal_body(response)
        text = clean_line(error_text(answer), _MAX_ERROR_CHARS)
        details = f": {text}" if text else ""
        if self._has_lost_session(status, text):
            raise self._lose_session(details)
        if status in (401, 403):
            raise Fault(self._key_problem() + details)
        if isinstance(answer, dict) and "jsonrpc" in answer and answer.get("error"):
            return {**answer, "id": message.get("id")}
        if status in _OLDER_TRANSPORT and message.get("method") == "initialize":
            details += (
                " (is it the older transport, HTTP+SSE? Streamable HTTP is needed; "
                "its address often ends in /mcp)"
            )
        raise RequestRefused(f"answers with status {status}{details}")

    def _refusal_body(self, response: Response) -> Any:
        """Return the JSON or the text of a refusal; "" if there is none for people."""
        try:
            body = b"".join(self._body(response, _MAX_REFUSAL_BYTES))
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

    def _key_problem(self) -> str:
        """Return the reason why a server refuses access."""
        if not self._key:
            return "asks for a key or a sign-in (key_variable names the variable of a key)"
        if not self._is_private:
            return "asks for a key, which is not sent unencrypted to another machine (use https)"
        return "does not accept the key"

    def _has_lost_session(self, status: int, text: str) -> bool:
        """Whether a refusal means that the session is unknown: by its status, or by status 400 and
        its text."""
        if not self._session_id:
            return False
        return status == 404 or (status == 400 and _SESSION_LOST.search(text) is not None)

    def _lose_session(self, details: str) -> SessionLost:
        self._session_id = ""
        return SessionLost(f"has lost the session{details}")

    def _body(self, response: Response, max_bytes: int) -> Iterator[bytes]:
        n_bytes = 0
        encoding = response.headers.get("Content-Encoding") or ""
        pieces = iter(lambda: response.read(_READ_BYTES), b"")
        for piece in decompressed(pieces, encoding, self._host):
            n_bytes += len(piece)
            if n_bytes > max_bytes:
                raise too_large(max_bytes)
            yield piece


def _is_header_word(text: str, max_chars: int) -> bool:
    """Whether a text of a server fits in a header: one ASCII word."""
    return 0 < len(text) <= max_chars and all("!" <= char <= "~" for char in text)


def _end_session(web: Web, url: str, headers: Mapping[str, str]) -> None:
    with suppress(DownloadError):
        web.ask(url, headers, method="DELETE").close()


def _watch(web: Web, wait: Wait, is_over: threading.Event, reasons: list[Exception]) -> None:
    """Interrupt a request if the user stops it or its time is over, and record the reason."""
    while not is_over.wait(CHECK_PERIOD_S):
        try:
            wait.check()
        except (Fault, StoppedError) as reason:
            reasons.append(reason)
            web.give_up()
            return

"""A server of tools at an address: each message is a request of its own, by the protocol's streamable HTTP.

An answer is an object, or a stream of events in which the server may first ask something itself. Nothing is read
between two requests: what a server wants to say by itself waits, or is lost, as the protocol allows (2025-06-18).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from app.downloads.refusal import ConnectionCut, DownloadError
from app.downloads.web import REDIRECTS, Response, Web
from app.mcp.server import ToolServerError
from app.mcp.transport import LOOK_S, Fault, Messages, SessionLost, StoppedError, Wait, too_much
from app.program.refusals import Refusal
from app.program.remote_model import is_private
from app.program.settings import ToolServerSetting
from app.remote.keys import find_key
from app.remote.stream import events, unpacked
from app.text.clean_text import clean_line

_SESSION, _VERSION = "Mcp-Session-Id", "MCP-Protocol-Version"
_CONNECTING_S = 10.0
_LATER_S = 1.0
"""A connection waits longer than a request, which then ends by the words for that."""
_ENDING_S, _LEAVING_S = 5.0, 0.3
"""Limits on saying that a session is over, and on waiting for that; a server forgets it sooner or later."""
_READ_BYTES = 1 << 16
_MOST_ID_CHARS = 1024
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
        self._url, self._host, self._headers, self._key = url, parts.netloc, dict(headers or {}), key
        self._is_private = is_private(parts)
        self._session = self._version = ""
        self.is_open = False

    @property
    def shown(self) -> str:
        """Its address."""
        return clean_line(self._url, 80)

    def open(self) -> None:
        """Begin without a session; the answer to the first message may name one."""
        if not self._is_private and self._headers:
            raise Fault("is not asked: its headers would go to another machine unencrypted; use https")
        self._session = self._version = ""
        self.is_open = True

    def note_version(self, version: str) -> None:
        """Name this version of the protocol from now on."""
        self._version = clean_line(version, 40)

    def close(self) -> None:
        """Say that the session is over, if there is one; who leaves waits hardly for it."""
        if self._session:
            ending = threading.Thread(target=_end_session, args=(self._web(_ENDING_S), self._url, self._all_headers()))
            ending.daemon = True
            ending.start()
            ending.join(_LEAVING_S)
        self.is_open, self._session, self._version = False, "", ""

    def _web(self, patience_s: float) -> Web:
        return Web(self._key, self._host, min(_CONNECTING_S, patience_s), patience_s, silence_s=patience_s)

    def send(self, message: Mapping[str, Any], wait: Wait) -> None:
        """Send a message; what comes back is not read."""
        with self._posted(message, wait):
            pass

    def ask(self, message: Mapping[str, Any], wait: Wait, most_bytes: int) -> Iterator[Messages]:
        """Send a message and yield what comes back, an object at a time."""
        with self._posted(message, wait) as response:
            session = response.headers.get(_SESSION) or ""
            if session and not self._session:
                if len(session) > _MOST_ID_CHARS or not all("!" <= char <= "~" for char in session):
                    raise Fault("names its session in a way that cannot be said again")
                self._session = session
            try:
                for one in events(self._body(response, most_bytes), self._host, most_bytes):
                    if isinstance(one, dict):
                        yield [one]
            except ConnectionCut:
                raise
            except DownloadError:
                raise Fault("does not speak the Model Context Protocol") from None

    @contextmanager
    def _posted(self, message: Mapping[str, Any], wait: Wait) -> Iterator[Response]:
        """Send a message; within the block its answer may be read, until a stop or the end of the time cuts it."""
        wait.look()
        web = self._web(wait.left_s + _LATER_S)
        headers = {"Content-Type": "application/json", "Accept": _ACCEPTED, **self._all_headers()}
        is_over, cut_by = threading.Event(), list[Exception]()
        watcher = threading.Thread(target=_watch, args=(web, wait, is_over, cut_by), daemon=True)
        watcher.start()
        try:
            response = web.post(self._url, json.dumps(message).encode(), headers)
            try:
                self._check(response)
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

    def _check(self, response: Response) -> None:
        status = response.status
        if status == 404 and self._session:
            self._session = ""
            raise SessionLost("has lost the session")
        if status in (401, 403):
            if self._key and not self._is_private:
                raise Fault("asks for a key, which is not sent unencrypted to another machine (use https)")
            raise Fault("does not accept the key" if self._key else "asks for a key (key_variable names its variable)")
        if status in REDIRECTS:
            raise Fault("redirects to another address, which is not followed: give the address that it means")
        if not 200 <= status < 300:
            raise Fault(f"answers with status {status}")

    def _body(self, response: Response, most_bytes: int) -> Iterator[bytes]:
        n_bytes, encoding = 0, response.headers.get("Content-Encoding") or ""
        for piece in unpacked(iter(lambda: response.read(_READ_BYTES), b""), encoding, self._host):
            n_bytes += len(piece)
            if n_bytes > most_bytes:
                raise too_much(most_bytes)
            yield piece


def _end_session(web: Web, url: str, headers: Mapping[str, str]) -> None:
    with suppress(DownloadError):
        web.ask(url, headers, method="DELETE").close()


def _watch(web: Web, wait: Wait, is_over: threading.Event, cut_by: list[Exception]) -> None:
    """Cut a request when the user stops it or its time is over; what reads it learns of that by the cut."""
    while not is_over.wait(LOOK_S):
        try:
            wait.look()
        except (Fault, StoppedError) as reason:
            cut_by.append(reason)
            web.give_up()
            return

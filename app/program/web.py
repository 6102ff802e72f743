"""A small, suspicious HTTP client over the standard library: one request at a time, redirects by
our own rules.

``urllib.request`` brings what matters here (TLS checked by the system's certificates, proxies from
the environment) and nothing to import but itself. The token goes to the host it was meant for and
nowhere else, never over plain HTTP except to this machine, and no redirect leads from HTTPS to
HTTP.
"""

from __future__ import annotations

import http.client
import io
import math
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from email.message import Message
from typing import Any, TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit

from app.program import exit_codes
from app.program.remote_model import THIS_MACHINE, is_private
from app.program.version import installed_version
from app.program.web_refusals import (
    MOST_RETRIES,
    ConnectionCut,
    DownloadError,
    StatusError,
    host_of,
    pause_before_retry,
    refused,
    said,
    unreachable,
)

MOST_LINE_BYTES = 1 << 18
"""Of a head with those of "100 Continue" before it, and of what may stand next to a piece of the
body: chunk sizes and trailers. A hundred headers of the longest kind the library takes would be
more."""


class EndlessLinesError(http.client.HTTPException):
    """The lines of an answer do not end."""


class _BoundedReader(io.RawIOBase):
    """Reads a socket until a moment, and so many bytes until it is allowed more.

    The library's timeout is one of each read, and it reads heads of "100 Continue", or trailers,
    forever.
    """

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, until_s: float) -> None:
        self._raw = raw
        self._sock = sock
        self._until_s = until_s
        self._left_bytes = MOST_LINE_BYTES

    def allow(self, n_bytes: int) -> None:
        """Let so many bytes of the body come at any time."""
        self._until_s = math.inf
        self._left_bytes = n_bytes + MOST_LINE_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._left_bytes <= 0:
            raise EndlessLinesError("its answer does not end")
        if self._until_s == math.inf:
            n = self._raw.readinto(buffer)
        else:
            n = self._read_in_time(buffer)
        self._left_bytes -= n or 0
        return n

    def _read_in_time(self, buffer: Any) -> int | None:
        left_s = self._until_s - time.monotonic()
        usual_s = self._sock.gettimeout()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(min(left_s, usual_s or left_s))
        try:
            return self._raw.readinto(buffer)
        finally:
            self._sock.settimeout(usual_s)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _BoundedAnswer(http.client.HTTPResponse):
    """An answer whose headers are whole in time, and whose lines end."""

    def __init__(self, until_s: float, sock: socket.socket, *rest: Any, **named: Any) -> None:
        super().__init__(sock, *rest, **named)
        self._bounds = _BoundedReader(self.fp.detach(), sock, until_s)
        self.fp: Any = io.BufferedReader(self._bounds)

    def read1(self, n: int = -1) -> bytes:
        self._bounds.allow(n)
        return super().read1(n)


TIMEOUT_S = 30.0
"""Seconds without a byte after which a connection counts as dead."""
HEADERS_S = 60.0
"""The headers of an answer are whole by then: one byte of them after the other is not waited
for."""
FLOOR_WINDOW_S = 120.0
FLOOR_BYTES = 128 << 10
"""Fewer bytes of a body in this time, about 1 kB/s, are no download: at that pace a gigabyte takes
eleven days. The connection is given up and another one goes on from there, as after one that broke
off."""
MOST_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
_MOST_BODY_BYTES = 16 << 20
_BODY_PATIENCE_S = 60.0
_LENGTH = re.compile(r"[0-9]{1,18}")
_SAFE_URL = re.compile(r"[!-~]+")

T = TypeVar("T")


class Response:
    """An answer whose body is read in pieces."""

    def __init__(self, answered: http.client.HTTPResponse, url: str) -> None:
        self._answered = answered
        self.url = url
        self.status = answered.status
        self.headers = answered.headers
        self.linked: Message | None = None
        """Headers of the last redirect that led here; None for none."""
        self.may_be_slow = False
        """Whether a body may come as slowly as it is written."""
        self._since_s = time.monotonic()
        self._n_bytes = 0

    def read(self, n_bytes: int) -> bytes:
        """Return the next bytes, b"" at the end.

        Raises ConnectionCut: hardly any come; DownloadError: no end comes.
        """
        try:
            piece = self._answered.read1(n_bytes)
        except EndlessLinesError as error:
            raise DownloadError(f"{host_of(self.url)}: {error}") from None
        except (TimeoutError, OSError, http.client.HTTPException, ValueError) as error:
            raise ConnectionCut(
                f"{host_of(self.url)}: the connection broke off ({said(error)})"
            ) from None
        self._n_bytes += len(piece)
        now_s = time.monotonic()
        if piece and now_s - self._since_s >= FLOOR_WINDOW_S and not self.may_be_slow:
            if self._n_bytes < FLOOR_BYTES:
                raise ConnectionCut(
                    f"{host_of(self.url)}: sends hardly anything (less than 1 kB/s for two minutes)"
                )
            self._since_s = now_s
            self._n_bytes = 0
        return piece

    @property
    def length(self) -> int | None:
        """How many bytes the body has, as far as the server says so."""
        stated = (self.headers.get("Content-Length") or "").strip()
        if _LENGTH.fullmatch(stated):
            return int(stated)
        return None

    def close(self) -> None:
        """Give the connection up."""
        self._answered.close()


class Web:
    """Sends requests; the token goes to ``token_host``, a host and port as in an address, only.

    A connection without a byte for ``timeout_s``, or for ``silence_s`` where it is given, counts as
    dead; headers take ``headers_s`` at most, however they arrive; ``pause`` waits the given number
    of seconds before another attempt.
    """

    def __init__(
        self,
        token: str = "",
        token_host: str = "",
        timeout_s: float = TIMEOUT_S,
        headers_s: float = HEADERS_S,
        pause: Callable[[float], object] = time.sleep,
        silence_s: float | None = None,
    ) -> None:
        self.has_token = bool(token)
        self._token = token
        self._token_host = token_host
        self._timeout_s = timeout_s
        self.pause = pause
        self._headers_s = headers_s
        self._silence_s = silence_s
        self._open: socket.socket | None = None
        """The connection: one request is sent at a time."""
        self._has_given_up = False

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Response:
        """Ask for an address, following redirects.

        Raises StatusError: it says no; or as ``ask`` does.
        """
        seen: list[str] = []
        linked: Message | None = None
        for _ in range(MOST_REDIRECTS + 1):
            split_address(url)
            response = self.ask(url, headers or {})
            if response.status not in REDIRECTS:
                response.linked = linked
                return self._accepted(response)
            response.close()
            seen.append(url)
            linked = response.headers
            url = _next_url(url, response.headers.get("Location"))
            if url in seen:
                raise DownloadError(f"{host_of(url)}: redirects in a circle")
        raise DownloadError(f"{host_of(url)}: redirects more than {MOST_REDIRECTS} times")

    def post(self, url: str, body: bytes | None, headers: Mapping[str, str]) -> Response:
        """Send a body, None for a GET, as ``ask`` does; the answer has any status, and its body any
        pace."""
        response = self.ask(url, headers, body)
        response.may_be_slow = True
        return response

    def hurry(self, timeout_s: float) -> None:
        """Wait no longer than this for the next byte of the answer."""
        if self._open is not None:
            with suppress(OSError, ValueError):
                self._open.settimeout(timeout_s)

    def give_up(self) -> None:
        """Cut what is open and refuse what would be asked next; any thread may call it."""
        self._has_given_up = True
        if self._open is not None:
            with suppress(OSError, ValueError):  # it has ended by itself
                # below TLS, which another thread is in
                socket.socket.shutdown(self._open, socket.SHUT_RDWR)

    def get_body(self, url: str) -> bytes:
        """Return a whole small answer, trying again where that may help.

        Raises DownloadError: none, or too large.
        """
        return self.with_retries(lambda: self._body_once(url))

    def size_at(self, url: str, most_bytes: int) -> int:
        """Return how large a file is.

        Raises DownloadError: it is a web page, of unknown size, or too large.
        """
        with closing(self.with_retries(lambda: self.get(url))) as response:
            is_page = response.headers.get_content_type() == "text/html"
            size_bytes = response.length or 0
        if is_page or not 0 < size_bytes < most_bytes:
            if size_bytes:
                problem = "is too large"
            else:
                problem = "does not say how large it is"
            raise DownloadError(
                f"{url}: {'is a web page, not a model' if is_page else problem}",
                exit_codes.BAD_DATA,
            )
        return size_bytes

    def with_retries(self, work: Callable[[], T]) -> T:
        """Do the work; after an overloaded server or a broken connection, wait and do it again, a
        few times."""
        waited_s = 0.0
        for attempt in range(MOST_RETRIES + 1):
            try:
                return work()
            except (StatusError, ConnectionCut) as error:
                pause_s = pause_before_retry(error, attempt, waited_s)
                if pause_s is None:
                    raise
                self.pause(pause_s)
                waited_s += pause_s
        raise AssertionError("the last attempt returns or raises")

    def _body_once(self, url: str) -> bytes:
        response = self.get(url)
        started_s = time.monotonic()
        pieces = []
        n_bytes = 0
        with closing(response):
            while piece := response.read(1 << 16):
                pieces.append(piece)
                n_bytes += len(piece)
                if n_bytes > _MOST_BODY_BYTES:
                    raise DownloadError(f"{host_of(url)}: the answer does not end")
                if time.monotonic() - started_s > _BODY_PATIENCE_S:
                    raise DownloadError(f"{host_of(url)}: the answer takes too long")
        if response.length not in (None, n_bytes):
            raise ConnectionCut(f"{host_of(url)}: the answer was cut off")
        return b"".join(pieces)

    def ask(
        self,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        method: str | None = None,
    ) -> Response:
        """Send one request; return any answer. Raises ConnectionCut: none in time; DownloadError:
        none to trust.

        ``method``: by default POST where there is a body, else GET.
        """
        request = urllib.request.Request(url, body, dict(headers), method=method)
        request.add_header("User-Agent", f"jalopy/{installed_version()}")
        request.add_header("Accept-Encoding", "identity")
        if self._token and _may_have_token(urlsplit(url), self._token_host):
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        # What is meant for this machine, a token perhaps, is no proxy's business.
        if urlsplit(url).hostname in THIS_MACHINE:
            proxies = [urllib.request.ProxyHandler({})]
        else:
            proxies = []
        opener = urllib.request.build_opener(_AnyStatus, _Connecting(self._answer), *proxies)
        if self._has_given_up:
            raise ConnectionCut(f"{host_of(url)}: nothing is wanted any more")
        try:
            return Response(opener.open(request, timeout=self._timeout_s), url)
        except urllib.error.URLError as error:
            raise unreachable(url, error.reason) from None
        except EndlessLinesError as error:
            raise DownloadError(f"{host_of(url)}: {error}") from None
        except UnicodeError:
            raise DownloadError(
                f"{host_of(url)}: is not asked: a header has characters that HTTP has not"
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise unreachable(url, error) from None

    def _answer(self, sock: socket.socket, *arguments: Any, **named: Any) -> _BoundedAnswer:
        self._open = sock
        if self._has_given_up:
            self.give_up()
        if self._silence_s is not None:
            sock.settimeout(self._silence_s)
        return _BoundedAnswer(time.monotonic() + self._headers_s, sock, *arguments, **named)

    def _accepted(self, response: Response) -> Response:
        if response.status in (200, 206):
            encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
            if encoding not in ("", "identity"):
                response.close()
                raise DownloadError(
                    f"{host_of(response.url)}: sends compressed what was asked for as it is"
                )
            return response
        response.close()
        is_hub = urlsplit(response.url).netloc == self._token_host
        raise refused(response.status, response.headers, response.url, self.has_token, is_hub)


class _Connecting(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Makes connections whose answers are read in a way of their own."""

    def __init__(self, response_class: Callable[..., http.client.HTTPResponse]) -> None:
        super().__init__()
        self._response_class = response_class

    def do_open(self, http_class: Any, req: Any, **options: Any) -> Any:
        def connect(*arguments: Any, **named: Any) -> Any:
            connection = http_class(*arguments, **named)
            connection.response_class = self._response_class
            return connection

        return super().do_open(connect, req, **options)


class _AnyStatus(urllib.request.HTTPErrorProcessor):
    """Hands over every answer, redirects too, unread: the library would parse what a server
    sends."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


def split_address(url: str) -> SplitResult:
    """Take an address apart.

    Raises DownloadError: it is none of HTTP or HTTPS, or carries a password.
    """
    try:
        parts = urlsplit(url)
        is_sound = (
            bool(parts.hostname) and parts.username is None and _SAFE_URL.fullmatch(url) is not None
        )
        parts.port  # noqa: B018 - raises where the port is none
    except ValueError:
        raise DownloadError(f"{url}: not a valid address", exit_codes.USAGE) from None
    if parts.scheme not in ("http", "https") or not is_sound:
        raise DownloadError(f"{url}: not an http or https address", exit_codes.USAGE)
    return parts


def _next_url(url: str, location: str | None) -> str:
    if not location:
        raise DownloadError(f"{host_of(url)}: redirects to nowhere")
    try:
        target = urljoin(url, location)
        scheme = urlsplit(target).scheme
    except ValueError:
        raise DownloadError(f"{host_of(url)}: redirects to an invalid address") from None
    if scheme not in ("http", "https") or (urlsplit(url).scheme == "https" and scheme != "https"):
        raise DownloadError(
            f"{host_of(url)}: redirects to {scheme or 'nowhere'}, which is not followed"
        )
    try:
        split_address(target)
    except DownloadError as error:  # the server's mistake, and not the user's
        raise DownloadError(f"{host_of(url)}: redirects to {error}") from None
    return target


def next_on_same_host(url: str, location: str | None) -> str:
    """Return the address that a redirect leads to.

    Raises:
        DownloadError: it is no address, or one on another host or port.
    """
    target = _next_url(url, location)
    if _host_and_port(urlsplit(target)) != _host_and_port(urlsplit(url)):
        raise DownloadError(f"give {target[:200]} if that is what you mean")
    return target


def _host_and_port(parts: SplitResult) -> tuple[str, int | None]:
    """Return host and port, of http for an address of https that names none.

    This is the same server, encrypted.
    """
    return (parts.hostname or "").lower(), parts.port or http.client.HTTP_PORT


def _may_have_token(parts: SplitResult, token_host: str) -> bool:
    return parts.netloc == token_host and is_private(parts)


def table_in(values: Any, name: str) -> dict[str, Any]:
    """Return the object that an answer has under a name; {} where that is none."""
    if isinstance(values, dict):
        found = values.get(name)
    else:
        found = None
    if isinstance(found, dict):
        return found
    return {}

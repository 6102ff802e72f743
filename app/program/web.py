"""A small, defensive HTTP client over the standard library, one request at a time.

``urllib.request`` provides TLS with the system's certificates and proxies from the environment. The
token goes only to its own host, and over plain HTTP only to this machine. No redirect leads from
HTTPS to HTTP.
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
    reason_of,
    refused,
    unreachable,
)

MOST_LINE_BYTES = 1 << 18
"""Limit on the headers with those of "100 Continue", and on chunk sizes and trailers next to a
piece of the body. It is less than a hundred headers of the longest kind that the library reads.
"""


class EndlessLinesError(http.client.HTTPException):
    """The headers or trailers of a response do not end."""


class _BoundedReader(io.RawIOBase):
    """Reads a socket until a deadline, up to a number of bytes.

    The library's timeout applies to single reads, and it reads "100 Continue" headers and trailers
    without limit.
    """

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, until_s: float) -> None:
        self._raw = raw
        self._sock = sock
        self._until_s = until_s
        self._left_bytes = MOST_LINE_BYTES

    def allow(self, n_bytes: int) -> None:
        """Allow this many bytes of the body, without a deadline."""
        self._until_s = math.inf
        self._left_bytes = n_bytes + MOST_LINE_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._left_bytes <= 0:
            raise EndlessLinesError("its answer does not end")
        if self._until_s == math.inf:
            n_read = self._raw.readinto(buffer)
        else:
            n_read = self._read_in_time(buffer)
        self._left_bytes -= n_read or 0
        return n_read

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
    """A response with a deadline for its headers and a limit on its lines."""

    def __init__(
        self, until_s: float, sock: socket.socket, *arguments: Any, **options: Any
    ) -> None:
        super().__init__(sock, *arguments, **options)
        self._bounds = _BoundedReader(self.fp.detach(), sock, until_s)
        self.fp: Any = io.BufferedReader(self._bounds)

    def read1(self, n: int = -1) -> bytes:
        self._bounds.allow(n)
        return super().read1(n)


TIMEOUT_S = 30.0
"""Seconds without a byte after which a connection counts as dead."""
HEADERS_S = 60.0
"""Deadline for the headers of a response, however slowly they arrive."""
FLOOR_WINDOW_S = 120.0
FLOOR_BYTES = 128 << 10
"""Minimum bytes of a body in this time (about 1 kB/s; a gigabyte would take eleven days). A slower
connection is closed and the download resumed with another one.
"""
MOST_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
_MOST_BODY_BYTES = 16 << 20
_BODY_PATIENCE_S = 60.0
_LENGTH = re.compile(r"[0-9]{1,18}")
_SAFE_URL = re.compile(r"[!-~]+")

T = TypeVar("T")


class Response:
    """A response whose body is read in pieces."""

    def __init__(self, raw_response: http.client.HTTPResponse, url: str) -> None:
        self._raw_response = raw_response
        self.url = url
        self.status = raw_response.status
        self.headers = raw_response.headers
        self.linked: Message | None = None
        """Headers of the last redirect; None if there was none."""
        self.may_be_slow = False
        """Whether the body may arrive at any speed."""
        self._since_s = time.monotonic()
        self._n_bytes = 0

    def read(self, n_bytes: int) -> bytes:
        """Return the next bytes; b"" at the end.

        Raises ConnectionCut: the connection broke or is too slow; DownloadError: the response does
        not end.
        """
        try:
            piece = self._raw_response.read1(n_bytes)
        except EndlessLinesError as error:
            raise DownloadError(f"{host_of(self.url)}: {error}") from None
        except (TimeoutError, OSError, http.client.HTTPException, ValueError) as error:
            raise ConnectionCut(
                f"{host_of(self.url)}: the connection broke off ({reason_of(error)})"
            ) from None
        self._n_bytes += len(piece)
        now_s = time.monotonic()
        if piece and now_s - self._since_s >= FLOOR_WINDOW_S and not self.may_be_slow:
            if self._n_bytes < FLOOR_BYTES:
                raise ConnectionCut(
                    f"{host_of(self.url)}: is too slow (less than 1 kB/s for two minutes)"
                )
            self._since_s = now_s
            self._n_bytes = 0
        return piece

    @property
    def length(self) -> int | None:
        """Length of the body as stated by the server; None if it is not stated."""
        stated = (self.headers.get("Content-Length") or "").strip()
        if _LENGTH.fullmatch(stated):
            return int(stated)
        return None

    def close(self) -> None:
        """Close the connection."""
        self._raw_response.close()


class Web:
    """Sends requests.

    Args:
        token: access token, sent to ``token_host`` only.
        token_host: host and port as in an address.
        timeout_s: seconds without a byte after which a connection counts as dead.
        headers_s: limit on the time for headers.
        pause: waits the given number of seconds before another attempt.
        silence_s: seconds without a byte for responses, if different from ``timeout_s``.
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
        """Open connection; one request is sent at a time."""
        self._has_given_up = False

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Response:
        """Request an address and follow redirects.

        Raises StatusError: the server refuses; or as ``ask``.
        """
        visited: list[str] = []
        redirect_headers: Message | None = None
        for _ in range(MOST_REDIRECTS + 1):
            split_address(url)
            response = self.ask(url, headers or {})
            if response.status not in REDIRECTS:
                response.linked = redirect_headers
                return self._accepted(response)
            response.close()
            visited.append(url)
            redirect_headers = response.headers
            url = _next_url(url, response.headers.get("Location"))
            if url in visited:
                raise DownloadError(f"{host_of(url)}: redirects in a circle")
        raise DownloadError(f"{host_of(url)}: redirects more than {MOST_REDIRECTS} times")

    def post(self, url: str, body: bytes | None, headers: Mapping[str, str]) -> Response:
        """Send a body (None for a GET) and return the response, whatever its status and speed."""
        response = self.ask(url, headers, body)
        response.may_be_slow = True
        return response

    def hurry(self, timeout_s: float) -> None:
        """Limit the wait for the next byte of the response."""
        if self._open is not None:
            with suppress(OSError, ValueError):
                self._open.settimeout(timeout_s)

    def give_up(self) -> None:
        """Cut the open connection and refuse further requests. Any thread may call this."""
        self._has_given_up = True
        if self._open is not None:
            with suppress(OSError, ValueError):  # it has ended by itself
                # below TLS, which another thread uses
                socket.socket.shutdown(self._open, socket.SHUT_RDWR)

    def get_body(self, url: str) -> bytes:
        """Return the body of a small response, with retries.

        Raises DownloadError: there is none, or it is too large.
        """
        return self.with_retries(lambda: self._body_once(url))

    def size_at(self, url: str, most_bytes: int) -> int:
        """Return the size of a file.

        Raises DownloadError: it is a web page, of unknown size, or too large.
        """
        with closing(self.with_retries(lambda: self.get(url))) as response:
            is_page = response.headers.get_content_type() == "text/html"
            size_bytes = response.length or 0
        if is_page or not 0 < size_bytes < most_bytes:
            if size_bytes:
                problem = "is too large"
            else:
                problem = "has no stated size"
            raise DownloadError(
                f"{url}: {'is a web page, not a model' if is_page else problem}",
                exit_codes.BAD_DATA,
            )
        return size_bytes

    def with_retries(self, work: Callable[[], T]) -> T:
        """Run ``work``, and repeat it a few times after a broken connection or an overloaded
        server.
        """
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
        """Send one request and return the response, whatever its status.

        Args:
            method: HTTP method; by default POST with a body, else GET.

        Raises ConnectionCut: there is no response in time; DownloadError: it cannot be trusted.
        """
        request = urllib.request.Request(url, body, dict(headers), method=method)
        request.add_header("User-Agent", f"jalopy/{installed_version()}")
        request.add_header("Accept-Encoding", "identity")
        if self._token and _may_have_token(urlsplit(url), self._token_host):
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        # Requests to this machine, perhaps with a token, do not go through a proxy.
        if urlsplit(url).hostname in THIS_MACHINE:
            proxies = [urllib.request.ProxyHandler({})]
        else:
            proxies = []
        opener = urllib.request.build_opener(_AnyStatus, _Connecting(self._answer), *proxies)
        if self._has_given_up:
            raise ConnectionCut(f"{host_of(url)}: cancelled")
        try:
            return Response(opener.open(request, timeout=self._timeout_s), url)
        except urllib.error.URLError as error:
            raise unreachable(url, error.reason) from None
        except EndlessLinesError as error:
            raise DownloadError(f"{host_of(url)}: {error}") from None
        except UnicodeError:
            raise DownloadError(
                f"{host_of(url)}: not sent: a header has characters that HTTP does not allow"
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise unreachable(url, error) from None

    def _answer(self, sock: socket.socket, *arguments: Any, **options: Any) -> _BoundedAnswer:
        self._open = sock
        if self._has_given_up:
            self.give_up()
        if self._silence_s is not None:
            sock.settimeout(self._silence_s)
        return _BoundedAnswer(time.monotonic() + self._headers_s, sock, *arguments, **options)

    def _accepted(self, response: Response) -> Response:
        if response.status in (200, 206):
            encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
            if encoding not in ("", "identity"):
                response.close()
                raise DownloadError(
                    f"{host_of(response.url)}: sends a compressed file although none was requested"
                )
            return response
        response.close()
        is_hub = urlsplit(response.url).netloc == self._token_host
        raise refused(response.status, response.headers, response.url, self.has_token, is_hub)


class _Connecting(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Makes connections with another response class."""

    def __init__(self, response_class: Callable[..., http.client.HTTPResponse]) -> None:
        super().__init__()
        self._response_class = response_class

    def do_open(self, http_class: Any, req: Any, **options: Any) -> Any:
        def connect(*arguments: Any, **options: Any) -> Any:
            connection = http_class(*arguments, **options)
            connection.response_class = self._response_class
            return connection

        return super().do_open(connect, req, **options)


class _AnyStatus(urllib.request.HTTPErrorProcessor):
    """Passes on every response unchanged, redirects too; the library would parse their content."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


def split_address(url: str) -> SplitResult:
    """Split an address.

    Raises DownloadError: it is not http or https, or has a password.
    """
    try:
        address = urlsplit(url)
        is_sound = (
            bool(address.hostname)
            and address.username is None
            and _SAFE_URL.fullmatch(url) is not None
        )
        address.port  # noqa: B018 - raises ValueError for an unsound port
    except ValueError:
        raise DownloadError(f"{url}: not a valid address", exit_codes.USAGE) from None
    if address.scheme not in ("http", "https") or not is_sound:
        raise DownloadError(f"{url}: not an http or https address", exit_codes.USAGE)
    return address


def _next_url(url: str, location: str | None) -> str:
    if not location:
        raise DownloadError(f"{host_of(url)}: redirects without an address")
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
    except DownloadError as error:  # this is the server's mistake, not the user's
        raise DownloadError(f"{host_of(url)}: redirects to {error}") from None
    return target


def next_on_same_host(url: str, location: str | None) -> str:
    """Return the address of a redirect.

    Raises:
        DownloadError: it is not an address, or on another host or port.
    """
    target = _next_url(url, location)
    if _host_and_port(urlsplit(target)) != _host_and_port(urlsplit(url)):
        raise DownloadError(f"give {target[:200]} if that is what you mean")
    return target


def _host_and_port(address: SplitResult) -> tuple[str, int | None]:
    """Return host and port.

    An https address without a port gets that of http: it is the same server, encrypted.
    """
    return (address.hostname or "").lower(), address.port or http.client.HTTP_PORT


def _may_have_token(address: SplitResult, token_host: str) -> bool:
    return address.netloc == token_host and is_private(address)


def table_in(values: Any, name: str) -> dict[str, Any]:
    """Return the object under a name in a response; empty if there is none."""
    if isinstance(values, dict):
        table = values.get(name)
    else:
        table = None
    if isinstance(table, dict):
        return table
    return {}

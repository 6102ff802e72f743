"""HTTP answers whose lines end: a server may send heads of "100 Continue", or trailers, for as long as it likes.

The standard library reads them for ever, a byte in time keeps every timeout from expiring. Here lines may take so much
more than the body that came between them, which the smallest chunks stay below.
"""

from __future__ import annotations

import http.client
import urllib.request
from typing import Any

MOST_LINE_BYTES = 1 << 18
"""Of all heads, chunk sizes and trailers: a hundred headers of the longest kind the library takes would be more."""
_LINE_BYTES_PER_BODY_BYTE = 8


class EndlessLinesError(http.client.HTTPException):
    """The lines of an answer do not end."""


class _BoundedLines:
    """What an answer is read from, with the lines counted."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left_bytes = MOST_LINE_BYTES

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def readline(self, most_bytes: int = -1) -> bytes:
        line: bytes = self._file.readline(most_bytes)
        self._left_bytes -= len(line)
        if self._left_bytes < 0:
            raise EndlessLinesError("its answer does not end")
        return line

    def read(self, *arguments: Any) -> bytes:
        return self._counted(self._file.read(*arguments))

    def read1(self, *arguments: Any) -> bytes:
        return self._counted(self._file.read1(*arguments))

    def readinto(self, buffer: Any) -> int:
        n: int = self._file.readinto(buffer)
        self._left_bytes += _LINE_BYTES_PER_BODY_BYTE * n
        return n

    def _counted(self, piece: bytes) -> bytes:
        self._left_bytes += _LINE_BYTES_PER_BODY_BYTE * len(piece)
        return piece


class _Response(http.client.HTTPResponse):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fp: Any = _BoundedLines(self.fp)


class _Connection(http.client.HTTPConnection):
    response_class = _Response


class _SecureConnection(http.client.HTTPSConnection):
    response_class = _Response


class PlainHandler(urllib.request.HTTPHandler):
    """Takes the place of the library's handler for HTTP."""

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Send a request."""
        return self.do_open(_Connection, request)


class SecureHandler(urllib.request.HTTPSHandler):
    """Takes the place of the library's handler for HTTPS; each connection checks certificates by the system's."""

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Send a request."""
        return self.do_open(_SecureConnection, request)

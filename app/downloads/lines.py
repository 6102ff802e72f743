"""Connections of a client: their answers' headers come whole within a time, and all of them can be cut from elsewhere.

The library's timeout is one of each read: headers that come byte by byte never exceed it.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any

MOST_LINE_BYTES = 1 << 18
"""Of all heads, chunk sizes and trailers: a hundred headers of the longest kind the library takes would be more."""
_LINE_BYTES_PER_BODY_BYTE = 8


class EndlessLinesError(http.client.HTTPException):
    """The lines of an answer do not end."""


class BoundedLines:
    """The file that an answer is read from, with a limit on its lines, which grows with the body between them.

    The standard library reads heads of "100 Continue", or trailers, forever: a byte in time keeps every timeout from
    expiring.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left_bytes = MOST_LINE_BYTES

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def readline(self, most_bytes: int = -1) -> bytes:
        """Read a line and count it."""
        line: bytes = self._file.readline(most_bytes)
        self._left_bytes -= len(line)
        if self._left_bytes < 0:
            raise EndlessLinesError("its answer does not end")
        return line

    def read(self, *arguments: Any) -> bytes:
        """Read a part of the body."""
        return self._counted(self._file.read(*arguments))

    def read1(self, *arguments: Any) -> bytes:
        """Read a part of the body with one call."""
        return self._counted(self._file.read1(*arguments))

    def readinto(self, buffer: Any) -> int:
        """Read a part of the body into a buffer."""
        n: int = self._file.readinto(buffer)
        self._left_bytes += _LINE_BYTES_PER_BODY_BYTE * n
        return n

    def _counted(self, piece: bytes) -> bytes:
        self._left_bytes += _LINE_BYTES_PER_BODY_BYTE * len(piece)
        return piece


class Lines:
    """The open connections of one client, which sends one request at a time.

    Args:
        headers_s: limit on the time that the headers of an answer take.
        silence_s: seconds without a byte after which a connection that stands counts as dead; None for as long as
            connecting may take.

    Attributes:
        is_cut: no connection may be opened from now on.
    """

    def __init__(
        self, headers_s: float, silence_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._headers_s, self._silence_s, self._clock = headers_s, silence_s, clock
        self._open: socket.socket | None = None
        self.is_cut = False

    def handlers(self) -> list[urllib.request.BaseHandler]:
        """Return what a library's opener takes instead of its own."""
        lines = self

        class Http(urllib.request.HTTPHandler):
            def do_open(self, http_class: Any, req: Any, **arguments: Any) -> Any:
                return super().do_open(lines._connecting(http_class), req, **arguments)

        class Https(urllib.request.HTTPSHandler):
            def do_open(self, http_class: Any, req: Any, **arguments: Any) -> Any:
                return super().do_open(lines._connecting(http_class), req, **arguments)

        return [Http(), Https()]

    def cut(self) -> None:
        """End what is open at once; any thread may call it."""
        self.is_cut = True
        if self._open is not None:
            with suppress(OSError, ValueError):  # it has ended by itself
                socket.socket.shutdown(self._open, socket.SHUT_RDWR)  # below TLS, which another thread is in

    def hurry(self, timeout_s: float) -> None:
        """Wait no longer than this for the next byte of the answer."""
        if self._open is not None:
            with suppress(OSError, ValueError):
                self._open.settimeout(timeout_s)

    def _connecting(self, http_class: Callable[..., Any]) -> Any:
        def connect(*arguments: Any, **named: Any) -> Any:
            connection = http_class(*arguments, **named)
            connection.response_class = self._answer
            return connection

        return connect

    def _answer(self, sock: socket.socket, *arguments: Any, **named: Any) -> _TimedAnswer:
        self._open = sock
        if self.is_cut:
            self.cut()
        if self._silence_s is not None:
            sock.settimeout(self._silence_s)
        return _TimedAnswer(self._clock, self._clock() + self._headers_s, sock, *arguments, **named)


class _TimedAnswer(http.client.HTTPResponse):
    """An answer that is given up where its headers are not whole in time."""

    def __init__(self, clock: Callable[[], float], deadline_s: float, sock: socket.socket, *rest: Any, **named: Any):
        super().__init__(sock, *rest, **named)
        self._timed = _TimedReader(self.fp.detach(), sock, clock, deadline_s)
        self.fp: Any = BoundedLines(io.BufferedReader(self._timed))

    def begin(self) -> None:
        super().begin()
        self._timed.lift()


class _TimedReader(io.RawIOBase):
    """Reads a socket until a moment, or without one."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, clock: Callable[[], float], deadline_s: float) -> None:
        self._raw, self._sock, self._clock = raw, sock, clock
        self._deadline_s: float | None = deadline_s
        self._timeout_s = sock.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._deadline_s is not None:
            left_s = self._deadline_s - self._clock()
            if left_s <= 0:
                raise TimeoutError
            self._sock.settimeout(left_s if self._timeout_s is None else min(left_s, self._timeout_s))
        return self._raw.readinto(buffer)

    def lift(self) -> None:
        """The headers are whole."""
        self._deadline_s = None
        if not self.closed:
            self._sock.settimeout(self._timeout_s)

    def close(self) -> None:
        self._raw.close()
        super().close()

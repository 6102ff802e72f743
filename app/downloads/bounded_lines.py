"""HTTP answers whose lines end: a server may send heads of "100 Continue", or trailers, for as long as it likes.

The standard library reads them for ever: a byte in time keeps every timeout from expiring. Here their size is limited
by the size of the body between them; the smallest chunks stay below that limit.
"""

from __future__ import annotations

import http.client
from typing import Any

MOST_LINE_BYTES = 1 << 18
"""Of all heads, chunk sizes and trailers: a hundred headers of the longest kind the library takes would be more."""
_LINE_BYTES_PER_BODY_BYTE = 8


class EndlessLinesError(http.client.HTTPException):
    """The lines of an answer do not end."""


class BoundedLines:
    """The file that an answer is read from, with a limit on the bytes of its header lines."""

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

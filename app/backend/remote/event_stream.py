"""Parser for the body of a response: decompresses it, splits it into lines, and parses their JSON.

It accepts server-sent events as specified and as servers write them: events without an empty line
between them, objects without ``data:``, one object over many lines, a single object.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from app.program.web_refusals import ConnectionCut, DownloadError
from app.text.clean_text import clean_line

MAX_LINE_BYTES = 1 << 20
"""Limit on one event. The longest that servers write, with log-probabilities, have a few kB."""
MAX_ANSWER_BYTES = 4 << 20
"""Limit on an answer that is not a stream."""
_MAX_LINES = 1 << 20
"""Limit on the lines of an answer; consecutive empty lines count as one. A compressed kilobyte can
be a megabyte of short lines."""
# Two line ends or more. An alternative for CR LF would be ten times as slow.
_EMPTY_LINES = re.compile(rb"[\r\n]{3,}")
_PIECE_BYTES = 1 << 16
_BOM = b"\xef\xbb\xbf"
_ANY_HEADER = zlib.MAX_WBITS | 32
"""Format of zlib: gzip or deflate, according to the header."""
_NO_HEADER = -zlib.MAX_WBITS
"""Format of zlib: deflate without the header that it should have."""
_JSON_EVENTS = (b"", b"message", b"error")
"""Names of events that contain JSON."""
_COMPRESSIONS = ("gzip", "x-gzip", "deflate")


class NotJsonError(DownloadError):
    """The server sends something else instead of JSON.

    Attributes:
        content: Description of the content, such as "a web page".
    """

    def __init__(self, host: str, content: str) -> None:
        super().__init__(
            f"{host}: sends {content} instead of the JSON of the API: is the address right? It "
            "usually ends in /v1"
        )
        self.content = content


def decompressed(body: Iterable[bytes], encoding: str, host: str) -> Iterator[bytes]:
    """Yield a body without its compression, in pieces of limited size.

    Raises:
        DownloadError: The compression is unknown, or the body does not have it.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        yield from body
        return
    if encoding not in _COMPRESSIONS:
        raise DownloadError(
            f"{host}: compresses its answer in an unknown way ({clean_line(encoding, 40)})"
        )

    decompressor: Any = None
    for piece in body:
        while piece:
            try:
                if decompressor is None:
                    decompressor, output = _start_decompressing(piece)
                else:
                    output = decompressor.decompress(piece, _PIECE_BYTES)
            except zlib.error:
                raise DownloadError(
                    f"{host}: says that its answer is compressed ({encoding}), but it is not"
                ) from None
            if output:
                yield output
            piece = decompressor.unconsumed_tail
            if decompressor.eof:
                # Another member may follow; some servers end with zeros.
                piece = decompressor.unused_data.lstrip(b"\0")
                decompressor = None


def _start_decompressing(piece: bytes) -> tuple[Any, bytes]:
    decompressor = zlib.decompressobj(_ANY_HEADER)
    try:
        return decompressor, decompressor.decompress(piece, _PIECE_BYTES)
    except zlib.error:
        decompressor = zlib.decompressobj(_NO_HEADER)
        return decompressor, decompressor.decompress(piece, _PIECE_BYTES)


def events(body: Iterable[bytes], host: str, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Any]:
    """Yield the JSON values of a stream until it says that it is done.

    An event that is an error is yielded as ``{"error": value}``.

    Raises:
        DownloadError: The stream is not valid.
    """
    pending = _PendingEvent(host, max(MAX_ANSWER_BYTES, max_line_bytes))
    for line in _lines(body, host, max_line_bytes):
        field, _, value = line.partition(b":")
        if pending.is_plain:
            pending.add(line)
        elif not field and value:
            continue  # a comment that keeps the connection open
        elif not pending.lines and line[:1] in (b"{", b"[", b"<"):
            yield from pending.take(line, is_plain=True)
        elif not line.strip():
            yield from pending.flush()
        elif field in (b"event", b"error"):
            # llama-server has a field "error" instead of an event.
            yield from pending.flush()
            pending.is_error = b"error" in (field, value.strip())
            pending.has_own_name = field == b"event" and value.strip() not in _JSON_EVENTS
            if field == b"error":
                yield from pending.take(value)
        elif field == b"data":
            while value.lstrip().startswith(b"data:"):  # Some gateways wrap each line again.
                value = value.lstrip()[5:]
            if value.strip(b' \t"').upper() == b"[DONE]":
                yield from pending.flush()
                return
            yield from pending.take(value.removeprefix(b" "))

    yield from pending.flush()
    is_single_value = (pending.n_plain, pending.n_events) == (1, 0)
    if not is_single_value:
        raise ConnectionCut(f"{host}: the connection ended before the answer did")


class _PendingEvent:
    """Lines of an event that is not complete.

    Attributes:
        lines: The lines.
        is_plain: Whether the lines are JSON without the fields of events.
        is_error: Whether the name of the event is "error".
        has_own_name: Whether the event has a name of its own. It may then contain anything, as a
            ping with the time of day does.
        n_events: Number of events so far.
        n_plain: Number of plain JSON values so far.
    """

    def __init__(self, host: str, max_bytes: int) -> None:
        self._host = host
        self._max_bytes = max_bytes
        self.lines: list[bytes] = []
        self._n_bytes = 0
        self.n_events = 0
        self.n_plain = 0
        self.is_plain = False
        self.is_error = False
        self.has_own_name = False

    def take(self, line: bytes, is_plain: bool = False) -> Iterator[Any]:
        """Add a line, and yield its value if it is complete JSON.

        Most lines are an event of their own, which is yielded before the empty line arrives.
        """
        if self.lines:
            self.add(line)
            return
        if not line.strip():
            return
        try:
            value = _load_json(line)
        except ValueError:
            if is_plain and line.startswith(b"<"):
                parse_json(line, self._host)  # Raises: there is no need to wait for a whole page.
            self.is_plain = is_plain
            self.add(line)
        else:
            yield from self._values(value, is_plain)

    def add(self, line: bytes) -> None:
        """Add a line of an incomplete object.

        Raises:
            DownloadError: The event is too long.
        """
        self.lines.append(line)
        self._n_bytes += len(line) + 1
        if self._n_bytes > self._max_bytes:
            raise DownloadError(f"{self._host}: sends an event that does not end")

    def flush(self) -> Iterator[Any]:
        """Yield the values of the complete event.

        Raises:
            DownloadError: The event is not JSON.
        """
        lines = self.lines
        data = b"\n".join(lines)
        self.lines = []
        self._n_bytes = 0
        if data and self.is_error and not self.is_plain:
            # An error may be plain text.
            yield from self._values(data.decode("utf-8", "replace"), is_plain=False)
        elif data:
            yield from self._parsed_values(data if _is_strict_json(data) else b"".join(lines))
        self.is_error = False
        self.is_plain = False
        self.has_own_name = False

    def _parsed_values(self, data: bytes) -> Iterator[Any]:
        """Yield the values in the data of an event; nothing if it has its own name and is not
        JSON."""
        try:
            value = parse_json(data, self._host)
        except NotJsonError:
            if self.has_own_name:
                return
            raise
        yield from self._values(value, self.is_plain)

    def _values(self, value: Any, is_plain: bool) -> Iterator[Any]:
        """Yield a value, or the items of an array of chunks."""
        if is_plain:
            self.n_plain += 1
        else:
            self.n_events += 1
        if self.is_error and not (isinstance(value, dict) and value.get("error")):
            value = {"error": value}
        if isinstance(value, list):
            yield from value
        else:
            yield value


def _lines(body: Iterable[bytes], host: str, max_bytes: int) -> Iterator[bytes]:
    """Yield lines as they end, in LF, CR or both, without blanks at their beginning.

    Raises:
        DownloadError: A line or the body is too long.
    """
    buffer = bytearray()
    ends_in_cr = False
    is_first = True
    n_lines = 0
    for piece in body:
        if ends_in_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            ends_in_cr = False
        if not piece:
            continue
        buffer += piece
        ends_in_cr = piece.endswith(b"\r")

        # Only a piece with a line end is split: a line may arrive byte by byte.
        if b"\n" in piece or b"\r" in piece:
            lines = _EMPTY_LINES.sub(b"\n\n", buffer).splitlines()
            if piece.endswith((b"\n", b"\r")):
                buffer = bytearray()
            else:
                buffer = bytearray(lines.pop())
            n_lines += len(lines)
            if n_lines > _MAX_LINES:
                raise DownloadError(f"{host}: the answer does not end")
            for line in lines:
                if is_first:
                    line = line.removeprefix(_BOM)
                    is_first = False
                yield line.lstrip(b" \t")

        is_json = bytes(buffer[:4]).lstrip(_BOM)[:1] in (b"{", b"[")
        limit_bytes = max(MAX_ANSWER_BYTES, max_bytes) if is_json else max_bytes
        if len(buffer) > limit_bytes:
            raise DownloadError(f"{host}: sends a line that does not end")
    if buffer:
        yield bytes(buffer).removeprefix(_BOM).lstrip(b" \t")


def _is_strict_json(data: bytes) -> bool:
    """Whether joined lines are JSON. Some servers break an object within a string, where JSON has
    no line breaks."""
    with suppress(ValueError, RecursionError):
        json.loads(data)
        return True
    return False


def _load_json(data: bytes) -> Any:
    """Parse JSON that may have control characters in its strings.

    Raises:
        ValueError: The data is not JSON.
    """
    try:
        return json.loads(data.decode("utf-8-sig", "replace"), strict=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_json(data: bytes, host: str) -> Any:
    """Parse JSON.

    Raises:
        NotJsonError: The data is not JSON.
    """
    try:
        return _load_json(data)
    except ValueError:
        is_page = data.lstrip()[:1] == b"<"
        content = "a web page" if is_page else "something else"
        raise NotJsonError(host, content) from None

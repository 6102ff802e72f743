"""The body of an answer: unpacked where it came packed, taken apart into lines, and those into JSON
values.

A stream of events as its specification has it, and as servers write it: events without an empty
line between them, objects without ``data:``, one object over many lines, one object alone.
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

MOST_LINE_BYTES = 1 << 20
"""Of one event; the longest that servers write, with log-probabilities, have a few kilobytes."""
MOST_ANSWER_BYTES = 4 << 20
"""Of an answer that is no stream."""
_MOST_LINES = 1 << 20
"""Of an answer, empty ones in a row counted as one: a packed kilobyte can be a megabyte of short
lines."""
# two ends or more; with an alternative for CR LF, ten times as slow
_EMPTY_LINES = re.compile(rb"[\r\n]{3,}")
_PIECE_BYTES = 1 << 16
_BOM = b"\xef\xbb\xbf"
_ANY_HEADER = zlib.MAX_WBITS | 32
_NO_HEADER = -zlib.MAX_WBITS
"""Of zlib: gzip or deflate, told by the header; deflate without the header that it should have."""
_MESSAGES = (b"", b"message", b"error")
"""Names of events that have JSON."""
_PACKED = ("gzip", "x-gzip", "deflate")


class NoJsonError(DownloadError):
    """Something else came where JSON is expected; ``kind`` says what."""

    def __init__(self, host: str, kind: str) -> None:
        words = (
            f"{host}: sends {kind} where the API's JSON is expected: is the address right? It "
            f"usually ends in /v1"
        )
        super().__init__(words)
        self.kind = kind


def unpacked(body: Iterable[bytes], encoding: str, host: str) -> Iterator[bytes]:
    """Yield a body as it was before it was packed, in bounded pieces.

    Raises DownloadError: no one here can do that.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        yield from body
        return
    if encoding not in _PACKED:
        raise DownloadError(
            f"{host}: sends packed ({clean_line(encoding, 40)}) what was asked for as it is"
        )
    unpacker: Any = None
    for piece in body:
        while piece:
            try:
                if unpacker is None:
                    unpacker, out = _begun(piece)
                else:
                    out = unpacker.decompress(piece, _PIECE_BYTES)
            except zlib.error:
                raise DownloadError(
                    f"{host}: says that its answer is packed ({encoding}), and it is not"
                ) from None
            if out:
                yield out
            piece = unpacker.unconsumed_tail
            if unpacker.eof:  # another part may follow; some servers end with zeros
                piece = unpacker.unused_data.lstrip(b"\0")
                unpacker = None


def _begun(piece: bytes) -> tuple[Any, bytes]:
    unpacker = zlib.decompressobj(_ANY_HEADER)
    try:
        return unpacker, unpacker.decompress(piece, _PIECE_BYTES)
    except zlib.error:
        unpacker = zlib.decompressobj(_NO_HEADER)
        return unpacker, unpacker.decompress(piece, _PIECE_BYTES)


def events(
    body: Iterable[bytes], host: str, most_line_bytes: int = MOST_LINE_BYTES
) -> Iterator[Any]:
    """Yield the JSON values of a stream until it says that it is done. Raises DownloadError.

    An event called an error is yielded as ``{"error": what it says}``.
    """
    held = _PendingEvent(host, max(MOST_ANSWER_BYTES, most_line_bytes))
    for line in _lines(body, host, most_line_bytes):
        word, _, rest = line.partition(b":")
        if held.is_plain:
            held.hold(line)
        elif not word and rest:  # a comment that keeps the connection alive
            continue
        elif not held.lines and line[:1] in (b"{", b"[", b"<"):
            yield from held.take(line, is_plain=True)
        elif not line.strip():
            yield from held.flush()
        elif word in (
            b"event",
            b"error",
        ):  # llama-server has a field ``error`` in place of an event
            yield from held.flush()
            held.is_error = b"error" in (word, rest.strip())
            held.is_named = word == b"event" and rest.strip() not in _MESSAGES
            if word == b"error":
                yield from held.take(rest)
        elif word == b"data":
            while rest.lstrip().startswith(b"data:"):  # a gateway that wraps each line once more
                rest = rest.lstrip()[5:]
            if rest.strip(b' \t"').upper() == b"[DONE]":
                yield from held.flush()
                return
            yield from held.take(rest.removeprefix(b" "))
    yield from held.flush()
    if (held.n_plain, held.n_events) != (1, 0):  # one JSON value alone is no stream, and whole
        raise ConnectionCut(f"{host}: the connection ended before the answer did")


class _PendingEvent:
    """Lines of an event that is not whole yet; ``is_plain``: they are JSON without the fields of
    events."""

    def __init__(self, host: str, most_bytes: int) -> None:
        self._host = host
        self._most_bytes = most_bytes
        self.lines: list[bytes] = []
        self._n_bytes = self.n_events = self.n_plain = 0
        self.is_plain = False
        self.is_error = False
        """Whether the event's name says so."""
        self.is_named = False
        """Whether the event has a name of its own.

        It may then hold anything, as a ping with the time of day does.
        """

    def take(self, line: bytes, is_plain: bool = False) -> Iterator[Any]:
        """Take a line: most are an event each, and are told before the empty line comes."""
        if self.lines:
            self.hold(line)
        elif line.strip():
            try:
                value = _loaded(line)
            except ValueError:
                if is_plain and line.startswith(b"<"):  # a web page: no end of it is waited for
                    parsed(line, self._host)
                self.is_plain = is_plain
                self.hold(line)
            else:
                yield from self._told(value, is_plain)

    def hold(self, line: bytes) -> None:
        """Take a line of an object that has more. Raises DownloadError: it does not end."""
        self.lines.append(line)
        self._n_bytes += len(line) + 1
        if self._n_bytes > self._most_bytes:
            raise DownloadError(f"{self._host}: sends an event that does not end")

    def flush(self) -> Iterator[Any]:
        """The event is over. Raises DownloadError: it is no JSON."""
        data = b"\n".join(self.lines)
        parts = self.lines
        self.lines = []
        self._n_bytes = 0
        if self.is_error and data and not self.is_plain:  # an error may be plain words
            yield from self._told(data.decode("utf-8", "replace"), False)
        elif data:
            yield from self._values(data if _is_strict(data) else b"".join(parts))
        self.is_error = self.is_plain = self.is_named = False

    def _values(self, data: bytes) -> Iterator[Any]:
        """Yield what an event holds; nothing if it has its own name and is no JSON.

        Raises:
            DownloadError: an event without a name of its own is no JSON.
        """
        try:
            value = parsed(data, self._host)
        except NoJsonError:
            if self.is_named:
                return
            raise
        yield from self._told(value, self.is_plain)

    def _told(self, value: Any, is_plain: bool) -> Iterator[Any]:
        """Yield a value, or those of an array of chunks."""
        self.n_plain = self.n_plain + is_plain
        self.n_events = self.n_events + (not is_plain)
        if self.is_error and not (isinstance(value, dict) and value.get("error")):
            value = {"error": value}
        yield from value if isinstance(value, list) else (value,)


def _lines(body: Iterable[bytes], host: str, most_bytes: int) -> Iterator[bytes]:
    """Yield lines as they end, in LF, CR or both; blanks at their ends are dropped."""
    held = bytearray()
    ends_in_cr = False
    is_first = True
    n_lines = 0
    for piece in body:
        if ends_in_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            ends_in_cr = False
        if not piece:
            continue
        held += piece
        ends_in_cr = piece.endswith(b"\r")
        # else a line that comes byte by byte would be looked through for each
        if b"\n" in piece or b"\r" in piece:
            lines = _EMPTY_LINES.sub(b"\n\n", held).splitlines()
            if piece.endswith((b"\n", b"\r")):
                held = bytearray()
            else:
                held = bytearray(lines.pop())
            n_lines += len(lines)
            if n_lines > _MOST_LINES:
                raise DownloadError(f"{host}: the answer does not end")
            for line in lines:
                yield line.removeprefix(_BOM).lstrip(b" \t") if is_first else line.lstrip(b" \t")
                is_first = False
        is_json = bytes(held[:4]).lstrip(_BOM)[:1] in (b"{", b"[")
        if len(held) > (max(MOST_ANSWER_BYTES, most_bytes) if is_json else most_bytes):
            raise DownloadError(f"{host}: sends a line that does not end")
    if held:
        yield bytes(held).removeprefix(_BOM).lstrip(b" \t")


def _is_strict(data: bytes) -> bool:
    """Whether lines that were joined are JSON; some servers cut an object within a text, where no
    line may end."""
    with suppress(ValueError, RecursionError):
        json.loads(data)
        return True
    return False


def _loaded(data: bytes) -> Any:
    """Read JSON, and raw control characters in its texts. Raises ValueError."""
    try:
        return json.loads(data.decode("utf-8-sig", "replace"), strict=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parsed(data: bytes, host: str) -> Any:
    """Read JSON. Raises DownloadError: it is none."""
    try:
        return _loaded(data)
    except ValueError:
        if data.lstrip()[:1] == b"<":
            kind = "a web page"
        else:
            kind = "something else"
        raise NoJsonError(host, kind) from None

"""One line of a conversation's log: a checksum and a JSON object. Knows nothing of what it says.

A line holds no newline but the last character, so a reader finds its way again whatever stands between two of them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

MOST_RECORD_BYTES = 16 << 20
"""A longer line is no record."""
MOST_TEXT_BYTES = MOST_RECORD_BYTES // 4
"""Limit on a sent text in a record, which may also hold its folded form, or the text that a reply began with."""
MOST_CUT_CHARS = 100_000
"""Length to which a text is cut that fits no record: at 12 bytes each, a reply's three texts take a fifth of one."""
CUT_MARK = " [cut off: too long to be saved]"
_CHECKSUM_CHARS = 8

Record = dict[str, Any]


def fits(text: str) -> bool:
    """Whether a text that is sent may become part of a record; a character takes up to 12 bytes there."""
    return 12 * len(text) <= MOST_TEXT_BYTES or len(json.dumps(text)) <= MOST_TEXT_BYTES


def write_record(values: Mapping[str, Any]) -> bytes:
    """Return the line, with shorter texts where no reader would take it. Raises ValueError: a number is not finite."""
    body = _body(values)
    if len(body) > MOST_RECORD_BYTES:
        body = _body(_shortened(values))
    return b"%08x %s\n" % (zlib.crc32(body), body)


def read_record(line: bytes) -> Record | None:
    """Return what a line without its newline says; None where the checksum or the form is wrong."""
    checksum, _, body = line.partition(b" ")
    if len(checksum) != _CHECKSUM_CHARS or len(body) > MOST_RECORD_BYTES:
        return None
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def checksum_of(line: bytes) -> int:
    """Return the checksum of a sound line."""
    return int(line[:_CHECKSUM_CHARS], 16)


def _body(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":"), allow_nan=False).encode("ascii")


def _shortened(values: Mapping[str, Any]) -> Record:
    """The same with every text cut, and without lists: those of tokens speak of the whole text."""
    return {name: _shorter(value) for name, value in values.items() if not isinstance(value, list)}


def _shorter(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _shortened(value)
    is_long = isinstance(value, str) and len(value) > MOST_CUT_CHARS
    return value[:MOST_CUT_CHARS] + CUT_MARK if is_long else value

"""One line of a conversation's log: a checksum and a JSON object. Knows nothing of what it says.

A line holds no newline but the last character, so a reader finds its way again whatever stands between two of them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

MOST_RECORD_BYTES = 16 << 20
"""A longer line is no record: nothing the chat writes comes near."""
_CHECKSUM_CHARS = 8

Record = dict[str, Any]


def write_record(values: Mapping[str, Any]) -> bytes:
    """Return the line, newline included.

    Raises:
        ValueError: a number is not finite.
    """
    body = json.dumps(values, separators=(",", ":"), allow_nan=False).encode("ascii")
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

"""Writes states as earlier versions did: one file for a conversation, records after each other."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.saved_state.layout import FILE_VERSION, RECORD_POSITIONS, StateHeader
from engine.saved_state.record import record_head

STEPS = ((0, 70), (70, 13), (40, 20), (60, 90))
"""Steps of a conversation: (tokens kept, tokens added), saved after each: one record dead and one half dead."""


def write_earlier(
    path: Path, session: Any, steps: Sequence[tuple[int, int]] = STEPS, number: int = 0
) -> list[list[int]]:
    """Have the session go through the steps; returns its tokens after each."""
    raw = StateHeader.of(session, bytes([number]) * 16).to_bytes(FILE_VERSION)
    digest, histories = raw[-32:], []
    for cut, n in steps:
        session.truncate(cut)
        start = session.length
        session.feed([(3 * i + n + number) % 300 for i in range(n)])
        for first in range(start // 8 * 8, session.length, RECORD_POSITIONS):
            last = min(session.length, first + RECORD_POSITIONS)
            out = np.empty(session.memory.copied_bytes(first, last), np.uint8)
            payload = out.data[: session.memory.copy_out(first, last, out)]
            head, digest = record_head(first, session.tokens[first:last], len(payload), zlib.crc32(payload), digest)
            raw += head + payload
        histories.append(session.tokens)
    path.write_bytes(raw)
    path.chmod(0o600)
    return histories

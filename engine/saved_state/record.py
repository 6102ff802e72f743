"""The record of a segment: the token ids of a few positions, and the place of their keys and values."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.saved_state.layout import HEADER_BYTES, RECORD_POSITIONS

if TYPE_CHECKING:
    from engine.cache.hybrid_memory import LayerMemory

RECORD_MAGIC = b"KVrc"
RECORD_BYTES, DIGEST_BYTES, ALIGNMENT = 64, 16, 64
_RECORD = struct.Struct("<4sIQQI")


@dataclass(frozen=True)
class Record:
    """Positions ``first`` to ``last`` and the place of their payload.

    Attributes:
        first: first position, a multiple of 64.
        token_ids: (last - first,) int32.
        payload_bytes: size of the payload.
        payload_crc: CRC-32 of the payload.
        payload_at: offset of the payload in the file, in bytes.
    """

    first: int
    token_ids: np.ndarray[tuple[int], np.dtype[np.int32]]
    payload_bytes: int
    payload_crc: int
    payload_at: int

    @property
    def last(self) -> int:
        """One past the last position."""
        return self.first + len(self.token_ids)


def head_bytes(count: int) -> int:
    """Return the bytes of a record before its payload, for ``count`` token ids."""
    return RECORD_BYTES + (4 * count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def saved_bytes(memory: LayerMemory, n_tokens: int) -> int:
    """Return the size in bytes of the segments of ``n_tokens`` tokens."""
    total, last = 0, 0
    while last < n_tokens:
        first, last = next_segment(memory, last, n_tokens)
        total += HEADER_BYTES + head_bytes(last - first) + memory.copied_bytes(first, last)
    return total


def next_segment(memory: LayerMemory, saved: int, n_tokens: int) -> tuple[int, int]:
    """Return the first position of the segment that goes on after ``saved`` tokens, and one past its last."""
    first = saved // RECORD_POSITIONS * RECORD_POSITIONS
    return first, memory.stop(saved, min(n_tokens, first + RECORD_POSITIONS))


def record_head(first: int, token_ids: list[int], n_payload: int, crc: int, before: bytes) -> bytes:
    """Return the bytes of a record before its payload; ``before`` is the header's digest."""
    fields = _RECORD.pack(RECORD_MAGIC, len(token_ids), first, n_payload, crc)
    ids = struct.pack(f"<{len(token_ids)}i", *token_ids)
    head = fields + _digest(before, fields, ids)
    return head.ljust(RECORD_BYTES, b"\0") + ids.ljust(head_bytes(len(token_ids)) - RECORD_BYTES, b"\0")


def parse_record(raw: bytes, before: bytes) -> Record | None:
    """Parse a record's head; None if it is missing, damaged, or not of the header whose digest is ``before``.

    Args:
        raw: the file from the end of its header on, up to its end or further than the head.
    """
    if len(raw) < RECORD_BYTES:
        return None
    magic, count, first, n_payload, crc = _RECORD.unpack_from(raw)
    if magic != RECORD_MAGIC or not 1 <= count <= RECORD_POSITIONS or len(raw) < head_bytes(count):
        return None
    fields, ids = raw[: _RECORD.size], raw[RECORD_BYTES : RECORD_BYTES + 4 * count]
    digest = raw[_RECORD.size : _RECORD.size + DIGEST_BYTES]
    padding = raw[_RECORD.size + DIGEST_BYTES : RECORD_BYTES] + raw[RECORD_BYTES + 4 * count : head_bytes(count)]
    if digest != _digest(before, fields, ids) or any(padding):
        return None
    token_ids = np.frombuffer(ids, "<i4").astype(np.int32)
    return Record(first, token_ids, n_payload, crc, HEADER_BYTES + head_bytes(count))


def _digest(before: bytes, fields: bytes, ids: bytes) -> bytes:
    return hashlib.blake2b(before + fields + ids, digest_size=DIGEST_BYTES).digest()

"""Restores a state file into an empty session, checking everything."""

from __future__ import annotations

import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import EngineError, shown
from engine.saved_state.layout import Header, StateRefusedError, StateSummary, refuse_other
from engine.saved_state.origin import Origin
from engine.saved_state.record import Record
from engine.saved_state.state_file import Chain, opened, read_chain, read_into

if TYPE_CHECKING:
    from engine.session import Session


@dataclass(frozen=True)
class Restored:
    """Result of a restore.

    Attributes:
        tokens: number of tokens that the session now holds; 0 if the file holds none.
        seconds: wall-clock time.
        n_bytes: bytes of keys and values read.
        lost: number of tokens in damaged records or behind one.
    """

    tokens: int
    seconds: float
    n_bytes: int
    lost: int = 0


def read_summary(path: Path) -> StateSummary:
    """Read the description of a state file, without its keys and values.

    Raises:
        StateRefusedError: not a state, damaged, or of another version.
        OSError: it cannot be read.
    """
    with opened(path) as fd:
        chain = read_chain(fd, shown(path.name), None)
        n_bytes = os.fstat(fd).st_size
    return StateSummary(len(chain.token_ids), n_bytes, chain.header.fingerprint, chain.header.kv_type)


def restore_state(session: Session, path: Path) -> Restored:
    """Fill an empty session from a file, up to the first record that is damaged or does not fit the context.

    The session's length is set only after all restored records were verified.

    Raises:
        StateRefusedError: damaged from its first record on, or saved with another model, KV type or version.
        EngineError: the session is not empty, or its model file was changed.
        OSError: it cannot be read.
    """
    started_s = time.monotonic()
    if session.length:
        raise EngineError("only an empty session takes over saved tokens")
    name = shown(path.name)
    wanted = Header.of(session, bytes(16))
    with opened(path) as fd:
        if os.fstat(fd).st_size == 0:
            return Restored(0, time.monotonic() - started_s, 0)
        chain = read_chain(fd, name, session.memory)
        refuse_other(chain.header, wanted, name)
        length, n_bytes = _copy_payloads(fd, session, chain)
        has_more = os.fstat(fd).st_size > chain.end
    if not length and (chain.records or has_more):
        raise StateRefusedError(f"{name}: is damaged")
    if length:
        session.adopt(chain.token_ids[:length])
    Origin(path, chain.header, chain.end, chain.digest, length, session.cached.watch()).remember(session)
    lost = max(0, min(len(chain.token_ids), session.n_ctx) - length)
    return Restored(length, time.monotonic() - started_s, n_bytes, lost=lost)


def _copy_payloads(fd: int, session: Session, chain: Chain) -> tuple[int, int]:
    """Verify the live payloads and copy them into the cache; returns (valid tokens, bytes read)."""
    memory = session.memory
    length, n_bytes = min(len(chain.token_ids), session.n_ctx), 0
    buffer = np.empty(max((record.payload_bytes for record in chain.records), default=0), np.uint8)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    for record in chain.live():
        if record.first >= length:
            break
        if not _sound_payload(fd, record, buffer.data):
            return min(length, record.first), n_bytes
        memory.copy_in(record.first, record.last, buffer[: record.payload_bytes])
        n_bytes += record.payload_bytes
    return length, n_bytes


def _sound_payload(fd: int, record: Record, buffer: memoryview) -> bool:
    payload = buffer[: record.payload_bytes]
    return read_into(fd, record.payload_at, payload) and zlib.crc32(payload) == record.payload_crc

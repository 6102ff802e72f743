"""Restores a state file into an empty session, checking everything."""

from __future__ import annotations

import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.cache.cached_tokens import common_prefix
from engine.errors import EngineError, shown
from engine.saved_state.layout import Header, StateRefusedError, StateSummary, refuse_other
from engine.saved_state.origin import Origin
from engine.saved_state.record import Record
from engine.saved_state.state_file import Chain, opened, read_chain, read_into

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.cache.layer_memory import LayerMemory
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


def restore_state(session: Session, path: Path, wanted: Sequence[int] | None = None) -> Restored:
    """Fill an empty session from a file, up to the first record that is damaged or does not fit the context.

    The session's length is set only after all restored records were verified. It stays empty where the layers' memory
    cannot go on from there: the file may lack positions that a sliding window sees. Recurrent layers go on from the
    last state that the file holds.

    Args:
        wanted: token ids of the next prompt: what the file holds beyond their common prefix is left out; None for all.

    Raises:
        StateRefusedError: damaged from its first record on, or saved with another model, KV type or version.
        EngineError: the session is not empty, or its model file was changed.
        OSError: it cannot be read.
    """
    started_s = time.monotonic()
    if session.length:
        raise EngineError("only an empty session takes over saved tokens")
    name = shown(path.name)
    expected = Header.of(session, bytes(16))
    with opened(path) as fd:
        if os.fstat(fd).st_size == 0:
            return Restored(0, time.monotonic() - started_s, 0)
        chain = read_chain(fd, name, session.memory)
        refuse_other(chain.header, expected, name)
        most = session.n_ctx if wanted is None else min(session.n_ctx, common_prefix(chain.token_ids, wanted))
        length, n_bytes = _copy_payloads(fd, session.memory, chain, most)
        has_more = os.fstat(fd).st_size > chain.end
    if not length and most and (chain.records or has_more):
        raise StateRefusedError(f"{name}: is damaged")
    length = session.memory.rewind(length)
    if length:
        session.adopt(chain.token_ids[:length])
    Origin(path, chain.header, chain.end, chain.digest, length, session.cached.watch()).remember(session)
    lost = max(0, min(len(chain.token_ids), most) - length)
    return Restored(length, time.monotonic() - started_s, n_bytes, lost=lost)


def restorable(session: Session, path: Path, wanted: Sequence[int]) -> int:
    """Return the number of tokens that ``restore_state(session, path, wanted)`` would bring back, payloads unchecked.

    Raises:
        StateRefusedError: saved with another model, KV type or version, or damaged in its header.
        EngineError: the session's model file was changed.
        OSError: it cannot be read.
    """
    name, memory = shown(path.name), session.memory
    with opened(path) as fd:
        chain = read_chain(fd, name, memory)
        refuse_other(chain.header, Header.of(session, bytes(16)), name)
    n = min(common_prefix(chain.token_ids, wanted), session.n_ctx)
    return memory.resumes_at(n, [record.copied for record in chain.needed(memory)])


def _copy_payloads(fd: int, memory: LayerMemory, chain: Chain, most: int) -> tuple[int, int]:
    """Verify the payloads of up to ``most`` tokens and copy them into memory; returns (valid tokens, bytes read)."""
    length, n_bytes = min(len(chain.token_ids), most), 0
    buffer = np.empty(max((record.payload_bytes for record in chain.records), default=0), np.uint8)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    for record in chain.needed(memory):
        if record.first >= length:
            continue
        if not _sound_payload(fd, record, buffer.data):
            return min(length, record.first), n_bytes
        memory.copy_in(record.first, record.last, buffer[: record.payload_bytes])
        n_bytes += record.payload_bytes
    return length, n_bytes


def _sound_payload(fd: int, record: Record, buffer: memoryview) -> bool:
    payload = buffer[: record.payload_bytes]
    return read_into(fd, record.payload_at, payload) and zlib.crc32(payload) == record.payload_crc

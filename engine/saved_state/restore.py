"""Restores saved tokens into an empty session, checking everything."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.cache.cached_tokens import common_prefix
from engine.errors import EngineError, shown
from engine.saved_state.layout import StateHeader, StateRefusedError, refuse_other
from engine.saved_state.segments import find
from engine.saved_state.state_file import SavedMatch, SavedPiece, is_sound, opened, read_chain

if TYPE_CHECKING:
    from engine.session import Session


@dataclass(frozen=True)
class Restored:
    """Result of a restore.

    Attributes:
        tokens: number of tokens that the session now holds; 0 if none are saved.
        seconds: wall-clock time.
        n_bytes: bytes of keys and values read.
        lost: number of tokens that are damaged, or come after damage.
    """

    tokens: int
    seconds: float
    n_bytes: int
    lost: int = 0


def restore_state(session: Session, place: Path, wanted: Sequence[int]) -> Restored:
    """Fill an empty session with what is saved of a prompt, up to what is damaged or does not fit the context.

    The session's length is set only after everything restored was verified. It stays empty where the layers' memory
    cannot go on from there: positions that a sliding window sees may be missing. Recurrent layers go on from the last
    state that is saved. A damaged segment is deleted, so that it is written again.

    Args:
        place: directory of the segments, or a file of an earlier version.
        wanted: token ids of the next prompt.

    Raises:
        StateRefusedError: the file is damaged from its beginning on, or of another model, KV type or version.
        EngineError: the session is not empty, or its model file was changed.
        OSError: the file cannot be read.
    """
    started_s = time.monotonic()
    if session.length:
        raise EngineError("only an empty session takes over saved tokens")
    with _found(session, place, wanted) as found:
        most = min(session.n_ctx, found.n)
        good, n_bytes = _copy_in(session, found.pieces, most)
    if most and not good and not place.is_dir():
        raise StateRefusedError(f"{shown(place.name)}: is damaged")
    length = session.memory.rewind(min(most, good))
    if length:
        session.adopt(wanted[:length])
    return Restored(length, time.monotonic() - started_s, n_bytes, lost=most - length)


def restorable(session: Session, place: Path, wanted: Sequence[int]) -> int:
    """Return the number of tokens that ``restore_state`` would bring back; no keys and values are read or checked.

    Raises:
        StateRefusedError, EngineError, OSError: as ``restore_state``.
    """
    with _found(session, place, wanted) as found:
        return session.memory.resumes_at(min(found.n, session.n_ctx), [piece.copied for piece in found.pieces])


@contextmanager
def _found(session: Session, place: Path, wanted: Sequence[int]) -> Iterator[SavedMatch]:
    header = StateHeader.of(session, bytes(16))
    if place.is_dir():
        yield find(place, header, wanted, session.memory)
        return
    name = shown(place.name)
    with opened(place) as fd:
        size_bytes = os.fstat(fd).st_size
        if not size_bytes:
            yield SavedMatch(0, [])
            return
        chain = read_chain(fd, name, session.memory)
        refuse_other(chain.header, header, name)
        if not chain.records and size_bytes > chain.end:
            raise StateRefusedError(f"{name}: is damaged")
        pieces = [
            SavedPiece(record.first, record.last, record.payload_bytes, partial(is_sound, fd, record), replaces=True)
            for record in chain.needed(session.memory)
        ]
        yield SavedMatch(common_prefix(chain.token_ids, wanted), pieces)


def _copy_in(session: Session, pieces: Sequence[SavedPiece], most: int) -> tuple[int, int]:
    """Verify pieces and copy them into the layers' memory; returns (positions without a gap, bytes read)."""
    good, n_bytes = 0, 0
    buffer = np.empty(max((piece.n_bytes for piece in pieces), default=0), np.uint8)
    for piece in pieces:
        if piece.first > good:
            break
        if piece.first >= most:
            continue
        if piece.read(buffer.data[: piece.n_bytes]):
            session.memory.copy_in(piece.first, piece.last, buffer[: piece.n_bytes])
            good, n_bytes = max(good, piece.last), n_bytes + piece.n_bytes
        elif piece.replaces:
            return min(good, piece.first), n_bytes
    return good, n_bytes

"""Restores saved tokens into an empty session, checking everything."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import EngineError
from engine.saved_state.segments import find, names_of
from engine.saved_state.state_file import SavedPiece

if TYPE_CHECKING:
    from engine.session import Session


@dataclass(frozen=True)
class RestoreResult:
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


def restore_state(session: Session, place: Path, wanted: Sequence[int]) -> RestoreResult:
    """Fill an empty session with what is saved of a prompt, up to what is damaged or does not fit
    the context.

    The session's length is set only after everything restored was verified. It stays empty where
    the layers' memory cannot go on from there: positions that a sliding window sees may be missing.
    Recurrent layers go on from the last state that is saved. A damaged segment is deleted, so that
    it is written again.

    Args:
        place: directory of the segments; one that does not exist holds nothing.
        wanted: token ids of the next prompt.

    Raises:
        EngineError: the session is not empty, or its model file was changed.
    """
    started_s = time.monotonic()
    if session.length:
        raise EngineError("only an empty session takes over saved tokens")
    found = find(place, session, wanted)
    most = min(session.n_ctx, found.n)
    good, n_bytes = _copy_in(session, found.pieces, most)
    length = session.memory.rewind(min(most, good))
    if length:
        session.adopt(wanted[:length])
    return RestoreResult(length, time.monotonic() - started_s, n_bytes, lost=most - length)


def restorable(session: Session, place: Path, wanted: Sequence[int]) -> int:
    """Return the number of tokens that ``restore_state`` would bring back; no keys and values are
    read or checked.

    Raises:
        EngineError: as ``restore_state``.
    """
    found = find(place, session, wanted)
    return session.memory.resumes_at(
        min(found.n, session.n_ctx), [piece.copied for piece in found.pieces]
    )


def saved_names(session: Session, place: Path, wanted: Sequence[int]) -> list[str]:
    """Return the names of the files in ``place`` that hold tokens of a prompt alone, as
    ``restore_state`` has it.

    Raises:
        EngineError: as ``restore_state``.
    """
    return names_of(place, session, wanted)


def _copy_in(session: Session, pieces: Sequence[SavedPiece], most: int) -> tuple[int, int]:
    """Verify pieces and copy them into the layers' memory; returns (positions without a gap, bytes
    read)."""
    good = 0
    n_bytes = 0
    buffer = np.empty(max((piece.n_bytes for piece in pieces), default=0), np.uint8)
    for piece in pieces:
        if piece.first > good:
            break
        if piece.first >= most:
            continue
        if piece.read(buffer.data[: piece.n_bytes]):
            session.memory.copy_in(piece.first, piece.last, buffer[: piece.n_bytes])
            good = max(good, piece.last)
            n_bytes = n_bytes + piece.n_bytes
    return good, n_bytes

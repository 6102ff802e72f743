"""Restoring of saved tokens into an empty session, with every byte checked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import EngineError
from engine.saved_state.segments import find, following, names_of
from engine.saved_state.state_file import SavedPiece

if TYPE_CHECKING:
    from engine.session import Session


@dataclass(frozen=True)
class RestoreResult:
    """Result of a restore.

    Attributes:
        tokens: number of tokens in the session; 0 if none are saved.
        seconds: wall-clock time.
        n_bytes: number of bytes of keys and values read.
        lost: number of tokens that are damaged or come after damage.
    """

    tokens: int
    seconds: float
    n_bytes: int
    lost: int = 0


def restore_state(session: Session, directory: Path, ids: Sequence[int]) -> RestoreResult:
    """Fill an empty session with the saved beginning of a prompt, up to the first damage or the
    size of the context.

    The session's length is set only after everything was verified. The session stays empty if
    computing cannot continue there, for example if positions that a sliding window sees are
    missing. Recurrent layers continue from the last saved state. A damaged segment is deleted, so
    it will be written again.

    Args:
        directory: directory of the segments; it need not exist.
        ids: token ids of the next prompt.

    Raises:
        EngineError: the session is not empty, or its model file was changed.
    """
    started_s = time.monotonic()
    if session.length:
        raise EngineError("only an empty session takes over saved tokens")
    match = find(directory, session, ids)
    limit = min(session.n_ctx, match.n)
    n_restored, n_bytes = _copy_in(session, match.pieces, limit)
    length = session.memory.rewind(min(limit, n_restored))
    if length:
        session.adopt(ids[:length])
    return RestoreResult(length, time.monotonic() - started_s, n_bytes, lost=limit - length)


def restorable(session: Session, directory: Path, ids: Sequence[int]) -> int:
    """Return the number of tokens that ``restore_state`` would restore, without reading or checking
    keys and values.

    Raises:
        EngineError: the model file was changed.
    """
    match = find(directory, session, ids)
    return session.memory.resumes_at(
        min(match.n, session.n_ctx), [piece.copied for piece in match.pieces]
    )


def saved_names(session: Session, directory: Path, ids: Sequence[int]) -> list[str]:
    """Return the names of the files in a directory that hold only tokens of a prompt.

    Raises:
        EngineError: the model file was changed.
    """
    return names_of(directory, session, ids)


def tokens_after(session: Session, directory: Path, ids: Sequence[int]) -> Iterator[list[int]]:
    """Yield sequences of saved tokens that once followed a prompt, up to the first end token.

    A sequence may lack its end if not all of it is saved.

    Args:
        directory: directory of the segments; it need not exist.
        ids: token ids of the prompt.

    Raises:
        EngineError: the model file was changed.
    """
    return following(directory, session, ids, session.model.tokenizer.end_ids)


def _copy_in(session: Session, pieces: Sequence[SavedPiece], limit: int) -> tuple[int, int]:
    """Verify saved pieces and copy them into the layers' memory.

    Returns:
        (number of positions restored without a gap, bytes read).
    """
    n_restored = 0
    n_bytes = 0
    buffer = np.empty(max((piece.n_bytes for piece in pieces), default=0), np.uint8)
    for piece in pieces:
        if piece.first > n_restored:
            break
        if piece.first >= limit:
            continue
        if piece.read(buffer.data[: piece.n_bytes]):
            session.memory.copy_in(piece.first, piece.last, buffer[: piece.n_bytes])
            n_restored = max(n_restored, piece.last)
            n_bytes += piece.n_bytes
    return n_restored, n_bytes

"""The file that matches a session's cache, so that a writer can continue it instead of rewriting it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.saved_state.layout import Header

if TYPE_CHECKING:
    from engine.cache.cached_tokens import CacheWatch
    from engine.session import Session


@dataclass(frozen=True)
class Origin:
    """The file that a session was restored from, or last written to.

    Attributes:
        path: of the file.
        header: of the file.
        end: end of its valid records, in bytes.
        digest: of the last valid record.
        length: number of tokens shared by file and cache.
        watch: records where the cache was cut since.
    """

    path: Path
    header: Header
    end: int
    digest: bytes
    length: int
    watch: CacheWatch

    def remember(self, session: Session) -> None:
        """Attach this to the session, replacing an earlier origin."""
        forget_origin(session)
        session.origin = self


def forget_origin(session: Session) -> Origin | None:
    """Detach and return the session's origin; None if it has none."""
    origin, session.origin = session.origin, None
    if not isinstance(origin, Origin):
        return None
    session.cached.unwatch(origin.watch)
    return origin

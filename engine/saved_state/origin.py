"""Which file a session's cache has in common with, so that a writer goes on with it instead of writing it anew."""

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
    """The file that a session was restored from or was written to last.

    Attributes:
        end: of its sound records, in bytes.
        digest: of the last of them.
        length: tokens that the file and the cache had in common.
        watch: where the cache was cut since.
    """

    path: Path
    header: Header
    end: int
    digest: bytes
    length: int
    watch: CacheWatch

    def remember(self, session: Session) -> None:
        """Leave it with the session, in place of an earlier one."""
        forget_origin(session)
        session.origin = self


def forget_origin(session: Session) -> Origin | None:
    """Take it from the session; None where it has none."""
    origin, session.origin = session.origin, None
    if not isinstance(origin, Origin):
        return None
    session.cached.unwatch(origin.watch)
    return origin

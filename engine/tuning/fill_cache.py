"""A long context for measurements, without computing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.cache.picture_ids import text_ids
from engine.errors import ContextFullError

if TYPE_CHECKING:
    from engine.session import Session


def fill_cache(session: Session, n: int) -> None:
    """Fill the cache of a session to n tokens by copying its keys and values.

    Text generated after it is meaningless; use it inside ``Session.restoring``.

    Args:
        n: a multiple of eight, as the session's length must be.

    Raises:
        ContextFullError: n is larger than the context.
    """
    length = session.length
    if n > session.n_ctx:
        raise ContextFullError(f"{n:,} tokens do not fit into the context of {session.n_ctx:,}")
    if n > length:
        tokens = text_ids(session.tokens) or [0]
        session.memory.repeat(length, n)
        session.adopt([tokens[index % len(tokens)] for index in range(length, n)])

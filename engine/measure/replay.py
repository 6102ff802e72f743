"""Replay of a known text, token by token, to measure the speed of replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.generation import ReplySteps

if TYPE_CHECKING:
    from engine.session import Session


def replay(session: Session, ids: Sequence[int], guess: bool) -> int:
    """Feed tokens as ``Session.generate`` feeds the tokens of a reply.

    Args:
        guess: compute repeated text several tokens at a time.

    Returns:
        Number of tokens that were guessed correctly.

    Raises:
        EngineError: the same errors as ``Session.feed``.
    """
    session.start_reply()
    steps = ReplySteps(session, guess)
    checked = session.check_ids(ids)
    for n_done, token in enumerate(checked):
        steps.compute([token], len(checked) - n_done)
    return session.n_guessed

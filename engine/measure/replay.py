"""Replay of a known text, token by token, to measure the speed of replies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from engine.generation import ReplySteps
from engine.sampling.guessing import ALL_KINDS, GuessKind

if TYPE_CHECKING:
    from engine.pipeline import Logits
    from engine.session import Session


def replay(
    session: Session,
    ids: Sequence[int],
    guess: bool,
    kinds: Collection[GuessKind] = ALL_KINDS,
    on_logits: Callable[[Logits], object] | None = None,
) -> int:
    """Feed tokens as ``Session.generate`` feeds the tokens of a reply.

    ``session.guess_tally`` then has the guesses.

    Args:
        guess: compute guessed tokens several at a time.
        kinds: kinds of guesses to use.
        on_logits: called with the logits after each token.

    Returns:
        Number of tokens that were guessed correctly.

    Raises:
        EngineError: the same errors as ``Session.feed``.
    """
    session.start_reply()
    usual_kinds = session.guess_kinds
    session.guess_kinds = kinds
    try:
        steps = ReplySteps(session, guess)
    finally:
        session.guess_kinds = usual_kinds
    checked = session.check_ids(ids)
    for n_done, token in enumerate(checked):
        steps.compute([token], len(checked) - n_done)
        if on_logits is not None:
            on_logits(session.next_logits)
    return session.n_guessed

"""Guesses of a reply by kind, and texts about them."""

from __future__ import annotations

from collections.abc import Sequence

from app.text import figures
from app.text.record import record

CONVERSATION = "conversation"
EARLIER = "earlier"
PREDICTOR = "predictor"
NAMES = {
    CONVERSATION: "this conversation",
    EARLIER: "earlier conversations",
    PREDICTOR: "multi-token prediction",
}
"""Sources of guesses, by the engine's names of their kinds."""
_KINDS = {
    "on": (CONVERSATION, EARLIER, PREDICTOR),
    "conversation": (CONVERSATION, PREDICTOR),
    "text": (CONVERSATION, EARLIER),
    "predictor": (PREDICTOR,),
    "off": (),
}
_LEAST_SECONDS = 0.05


@record
class GuessFigures:
    """Guesses of one kind in a reply."""

    kind: str
    """Kind of guess, a key of ``NAMES``."""
    tried: int
    """Number of tokens that were guessed and computed."""
    right: int
    """Number of these that are in the reply."""


def guess_kinds(guess_ahead: str) -> tuple[str, ...]:
    """Return the kinds of guesses that a value of the setting ``guess_ahead`` allows."""
    return _KINDS[guess_ahead]


def right_of(*guesses: GuessFigures) -> str:
    """Return how many guesses were right: "45 of 60"."""
    right = sum(kind.right for kind in guesses)
    tried = sum(kind.tried for kind in guesses)
    return f"{figures.count(right)} of {figures.count(tried)}"


def by_kind(guesses: Sequence[GuessFigures]) -> str:
    """Return how many guesses of each kind were right; "" without guesses."""
    return ", ".join(f"{right_of(kind)} from {NAMES[kind.kind]}" for kind in guesses)


def saving(saved_s: float | None) -> str:
    """Return the time that guesses saved or cost; "" if it is unknown or very short."""
    if saved_s is None or abs(saved_s) < _LEAST_SECONDS:
        return ""
    if saved_s > 0:
        return f"saved {figures.seconds(saved_s)}"
    return f"cost {figures.seconds(-saved_s)}"


def joined(left: Sequence[GuessFigures], right: Sequence[GuessFigures]) -> tuple[GuessFigures, ...]:
    """Return the sums of two replies' guesses, by kind."""
    sums = []
    for kind in NAMES:
        same = [guesses for guesses in (*left, *right) if guesses.kind == kind]
        if same:
            n_tried = sum(guesses.tried for guesses in same)
            sums.append(GuessFigures(kind, n_tried, sum(guesses.right for guesses in same)))
    return tuple(sums)

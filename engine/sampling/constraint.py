"""Replies in a given form: which tokens may come next is said by somebody else, and the sampler
chooses among them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from engine.errors import EngineError

_NEVER = np.float32(-1e30)
"""Instead of a logit: the probability of such a token is 0 next to any other, and it is a number,
as logits must be."""

Allowed = np.ndarray[Any, np.dtype[np.bool_]]


class Constraint(Protocol):
    """A form, and how far a reply has come in it."""

    @property
    def is_over(self) -> bool:
        """Whether nothing but an end may follow."""

    def forced(self) -> list[int]:
        """Return tokens that come next whatever the model says; none where there is a choice."""

    def allowed(self) -> Allowed:
        """Return for each token whether it may come next; the end tokens may where the form is
        complete."""

    def accept(self, token_id: int) -> None:
        """The reply goes on with a token that was allowed."""


def constrained(
    logits: np.ndarray[Any, np.dtype[np.float32]], allowed: Allowed
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the logits with those of all other tokens so low that they are never chosen.

    Raises:
        EngineError: no token is allowed.
    """
    if not allowed.any():
        raise EngineError("no token of this model goes on with the form that was asked for")
    return np.where(allowed, logits, _NEVER)

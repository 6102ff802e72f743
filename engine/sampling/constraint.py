"""Interface of forms that a reply must have, and the logits that obey them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from engine.errors import EngineError

_FORBIDDEN_LOGIT = np.float32(-1e30)
"""Logit of a token that the form forbids: its probability is 0, and unlike -infinity it passes the
check for damaged weights."""

Allowed = np.ndarray[Any, np.dtype[np.bool_]]


class Constraint(Protocol):
    """A form, and the position of a reply in it."""

    @property
    def is_over(self) -> bool:
        """Whether only an end token may follow."""

    def forced(self) -> list[int]:
        """Return the tokens that must come next; empty if there is a choice."""

    def allowed(self) -> Allowed:
        """Return whether each token may come next, (vocab_size,) bool. End tokens are allowed when
        the form is complete."""

    def accept(self, token_id: int) -> None:
        """Append an allowed token to the reply."""


def constrained(
    logits: np.ndarray[Any, np.dtype[np.float32]], allowed: Allowed
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return logits in which forbidden tokens are so low that they are never chosen.

    Raises:
        EngineError: no token is allowed.
    """
    if not allowed.any():
        raise EngineError("no token of this model goes on with the form that was asked for")
    return np.where(allowed, logits, _FORBIDDEN_LOGIT)

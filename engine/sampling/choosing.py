"""The next tokens of a reply: one that is sampled, or several that its form forces."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from engine.sampling.constraint import Constraint, constrained
from engine.sampling.sampler import Sampler


class TokenChooser:
    """Chooses among all tokens, or among those that a form allows.

    Args:
        sampler: of the reply.
        constraint: the form; None for none.
        ends: ids of the tokens that end a reply.
        most_forced: limit on the forced tokens that are returned at once.
    """

    def __init__(
        self,
        sampler: Sampler,
        constraint: Constraint | None,
        ends: Collection[int],
        most_forced: int,
    ) -> None:
        self._sampler = sampler
        self._constraint = constraint
        self._ends = ends
        self._most_forced = most_forced
        self._forced: list[int] = []

    @property
    def is_over(self) -> bool:
        """Whether the form is complete and allows nothing more."""
        return self._constraint is not None and not self._forced and self._constraint.is_over

    def next(
        self, logits: np.ndarray[Any, np.dtype[np.float32]], tokens: Sequence[int]
    ) -> list[int]:
        """Return the next token, or several that no logits can change.

        Args:
            logits: (vocab_size,) float32 after the last token.
            tokens: ids of all tokens so far.
        """
        if self._constraint is None:
            return [self._sampler.choose(logits, tokens)]
        if not self._forced:
            self._forced = self._constraint.forced()
            for token in self._forced:
                self._constraint.accept(token)
        if self._forced:
            forced = self._forced[: self._most_forced]
            self._forced = self._forced[self._most_forced :]
            return forced
        chosen = self._sampler.choose(constrained(logits, self._constraint.allowed()), tokens)
        if chosen not in self._ends:
            self._constraint.accept(chosen)
        return [chosen]

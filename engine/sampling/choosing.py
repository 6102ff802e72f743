"""Choice of the next tokens of a reply: one sampled token, or several that a form forces."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from engine.sampling.constraint import Constraint, constrained
from engine.sampling.sampler import Sampler


class TokenChooser:
    """Chooses among all tokens, or among the tokens that a form allows.

    Args:
        sampler: sampler of the reply.
        constraint: form that the reply must have; None for free text.
        end_ids: ids of the tokens that end a reply.
        max_forced: limit on the forced tokens returned at once.
    """

    def __init__(
        self,
        sampler: Sampler,
        constraint: Constraint | None,
        end_ids: Collection[int],
        max_forced: int,
    ) -> None:
        self._sampler = sampler
        self._constraint = constraint
        self._end_ids = end_ids
        self._max_forced = max_forced
        self._forced: list[int] = []

    @property
    def is_over(self) -> bool:
        """Whether the form is complete and allows no further token."""
        return self._constraint is not None and not self._forced and self._constraint.is_over

    def next(
        self, logits: np.ndarray[Any, np.dtype[np.float32]], tokens: Sequence[int]
    ) -> list[int]:
        """Return the next token, or several tokens that the form forces.

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
            forced = self._forced[: self._max_forced]
            self._forced = self._forced[self._max_forced :]
            return forced

        token = self._sampler.choose(constrained(logits, self._constraint.allowed()), tokens)
        if token not in self._end_ids:
            self._constraint.accept(token)
        return [token]

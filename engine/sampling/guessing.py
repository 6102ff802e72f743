"""Guesses the next tokens of a reply from what the conversation repeats, so that one walk checks several (exact).

If the last tokens were written before, those that followed them are the guess (prompt lookup; Saxena 2023, as
llama.cpp's "lookup"). ``Session.generate`` computes them together with the chosen token, each to the bit as alone, and
samples as it would without: a guess that was not chosen costs time and nothing else. That time is kept within a share
of the whole by a balance of seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.sampling.loops import LoopWatch

if TYPE_CHECKING:
    import numpy as np

MOST_GUESSES = 3
"""Tokens guessed at once: with the chosen one, four columns, of which decode's kernels share the most."""
SHORTEST, LONGEST = 2, 5
"""Tokens that must have been written before, and from how many on more say nothing new."""
KEYS = (4, SHORTEST)
"""Lengths by which places are looked up; the longest that was written before decides."""
LIKELY = {2: 0.25, 3: 0.45, 4: 0.6, 5: 0.75}
"""Share of first guesses that come true by length of the match, until it was measured."""
MEMORY = 16.0
"""Weight of what was measured: the last guesses count, not the first of a long reply."""
SHARE = 0.007
"""Share of a reply's time that guesses may cost."""
FIRST_STEPS, MOST_STEPS = 1.0, 30.0
"""The balance at the beginning and at most, in steps of one token."""


class Guessing:
    """The guesses of one reply."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)
        self._places: dict[tuple[int, ...], int] = {}
        self._n_indexed = SHORTEST
        self._proven: list[tuple[int, np.ndarray]] = []
        self._came_true = {length: MEMORY * share for length, share in LIKELY.items()}
        self._n_tried = dict.fromkeys(LIKELY, MEMORY)
        self._length = SHORTEST
        self._step_s = 0.0
        self._cost_steps = {k: 1.0 + 0.5 * k for k in range(1, MOST_GUESSES + 1)}
        self._balance = FIRST_STEPS
        self._watch = LoopWatch()

    def computed(self, token: int) -> np.ndarray | None:
        """Note the chosen token, and return the logits after it if it was guessed and computed already."""
        self._tokens.append(token)
        self._watch.note(token)
        if not self._proven:
            return None
        (guess, logits), *rest = self._proven
        is_true = guess == token
        self._note(is_true)
        self._proven = rest if is_true else []
        if not is_true:
            return None
        self._balance = min(MOST_STEPS, self._balance + 1.0)
        return logits

    def note(self, tokens: Sequence[int]) -> None:
        """Note tokens that were computed without a guess."""
        self._tokens += tokens
        for token in tokens:
            self._watch.note(token)
        self._proven = []

    def propose(self, most: int) -> list[int]:
        """Return up to ``most`` tokens to compute together with the chosen one; none where it would not pay.

        None either in a loop, which would end later for the user if more of it came in the same time.
        """
        if self._watch.is_likely:
            return []
        place = self._find()
        if place is None or not self._step_s:
            return []
        following = self._tokens[place : place + min(most, MOST_GUESSES)]
        likely = self._came_true[self._length] / self._n_tried[self._length]
        best, k = 0.0, 0
        for n in range(1, len(following) + 1):
            gain = sum(likely**i for i in range(n + 1)) - self._cost_steps[n]
            if gain > best:
                best, k = gain, n
        if not k:
            k = 1  # tried where the balance allows it, or it would never be known that guesses come true again
        return following[:k] if k <= len(following) and self._balance >= self._cost_steps[k] - 1.0 else []

    def spent(self, guesses: Sequence[int], logits: Sequence[np.ndarray], seconds: float) -> None:
        """Note what one walk took: of the chosen token alone, or with guesses, whose logits are kept."""
        if not guesses:
            self._step_s = seconds if not self._step_s else 0.8 * self._step_s + 0.2 * seconds
            self._balance = min(MOST_STEPS, self._balance + SHARE)
            return
        steps = seconds / self._step_s
        n = len(guesses)
        self._cost_steps[n] = 0.7 * self._cost_steps[n] + 0.3 * steps
        self._balance -= steps - 1.0
        self._proven = list(zip(guesses, logits, strict=True))

    def _note(self, is_true: bool) -> None:
        keep = 1.0 - 1.0 / MEMORY
        self._came_true[self._length] = keep * self._came_true[self._length] + is_true
        self._n_tried[self._length] = keep * self._n_tried[self._length] + 1.0

    def _find(self) -> int | None:
        """Return the place after the last match of the end of the tokens, and remember its length."""
        tokens = self._tokens
        for end in range(self._n_indexed, len(tokens)):
            for n in KEYS:
                self._places[tuple(tokens[max(0, end - n) : end])] = end
        self._n_indexed = max(SHORTEST, len(tokens))
        found = (self._places.get(tuple(tokens[-n:])) for n in KEYS)
        place = next((place for place in found if place is not None), None)
        if place is None:
            return None
        length = SHORTEST
        while length < min(LONGEST, place) and tokens[place - length - 1] == tokens[-length - 1]:
            length += 1
        self._length = length
        return place

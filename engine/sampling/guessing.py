"""Guesses the next tokens of a reply from what was written before, so that one walk checks several
(exact).

If the last tokens were written before, in this conversation or in an earlier one, those that
followed are the guess (prompt lookup; Saxena 2023, as llama.cpp's "lookup"). ``Session.generate``
computes them together with the chosen token, each to the bit as alone, and samples as it would
without: a guess that was not chosen costs time and nothing else. That time is kept within a share
of the whole by a balance of seconds.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from engine.sampling.earlier_text import EarlierText
from engine.sampling.loops import LoopWatch

Match = tuple[bool, int]
"""Whether it is in an earlier conversation, and how many of the last tokens were written there."""

MOST_GUESSES = 3
"""Tokens guessed at once: with the chosen one, four columns, of which decode's kernels share the
most."""
SHORTEST = 2
LONGEST = 5
"""Tokens that must have been written before, and from how many on more say nothing new."""
KEYS = (4, SHORTEST)
"""Lengths by which places are looked up; the longest that was written before decides."""
LIKELY = {(False, n): 0.15 * n for n in range(SHORTEST, LONGEST + 1)} | {
    (True, n): 0.1 * n - 0.1 for n in range(3, 10)
}
"""Share of first guesses that come true by match, until it was measured."""
MEMORY = 16.0
"""Weight of what was measured: the last guesses count, not the first of a long reply."""
SHARE = 0.007
"""Share of a reply's time that guesses may cost."""
FIRST_STEPS = 1.0
MOST_STEPS = 30.0
"""A session's balance at the beginning and at most, in steps of one token."""


class GuessCosts:
    """What guesses took in a session, and what they may take from now on.

    Attributes:
        step_s: of one token alone; 0 before the first.
        of_walk: steps of one token that a walk with so many guesses takes.
        balance: steps that guesses may cost.
    """

    def __init__(self) -> None:
        self.step_s = 0.0
        self.of_walk = {k: 1.0 + 0.5 * k for k in range(1, MOST_GUESSES + 1)}
        self.balance = FIRST_STEPS

    def spent(self, n_guesses: int, seconds: float) -> None:
        """Note what one walk took."""
        if not n_guesses:
            if not self.step_s:
                self.step_s = seconds
            else:
                self.step_s = 0.8 * self.step_s + 0.2 * seconds
            self.balance = min(MOST_STEPS, self.balance + SHARE)
            return
        steps = seconds / self.step_s
        self.of_walk[n_guesses] = 0.7 * self.of_walk[n_guesses] + 0.3 * steps
        self.balance -= steps - 1.0

    def gained(self) -> None:
        """A token came with a walk that was paid for."""
        self.balance = min(MOST_STEPS, self.balance + 1.0)


class Guessing:
    """The guesses of one reply.

    Args:
        tokens: of the conversation so far.
        costs: the session's.
        earlier: other conversations.
    """

    def __init__(
        self, tokens: Sequence[int], costs: GuessCosts, earlier: EarlierText | None = None
    ) -> None:
        self._tokens = list(tokens)
        self._costs = costs
        self._earlier = earlier
        self._places: dict[tuple[int, ...], int] = {}
        self._n_indexed = SHORTEST
        self._proven: list[tuple[int, np.ndarray]] = []
        self._came_true = {match: MEMORY * share for match, share in LIKELY.items()}
        self._n_tried = dict.fromkeys(LIKELY, MEMORY)
        self._match: Match = (False, SHORTEST)
        self._watch = LoopWatch()

    def computed(self, token: int) -> np.ndarray | None:
        """Note the chosen token, and return the logits after it if it was guessed and computed
        already."""
        self._tokens.append(token)
        self._watch.note(token)
        if not self._proven:
            return None
        (guess, logits), *rest = self._proven
        is_true = guess == token
        self._note(is_true)
        if is_true:
            self._proven = rest
        else:
            self._proven = []
        if not is_true:
            return None
        self._costs.gained()
        return logits

    def note(self, tokens: Sequence[int]) -> None:
        """Note tokens that were computed without a guess."""
        self._tokens += tokens
        for token in tokens:
            self._watch.note(token)
        self._proven = []

    def propose(self, most: int) -> list[int]:
        """Return up to ``most`` tokens to compute together with the chosen one; none where it would
        not pay.

        None either in a loop, which would end later for the user if more of it came in the same
        time.
        """
        if self._watch.is_likely or not self._costs.step_s:
            return []
        found = max(
            self._found(min(most, MOST_GUESSES)), key=lambda one: self._likely(one[0]), default=None
        )
        if found is None:
            return []
        self._match, following = found
        likely = self._likely(self._match)
        best = 0.0
        k = 0
        for n in range(1, len(following) + 1):
            gain = sum(likely**i for i in range(n + 1)) - self._costs.of_walk[n]
            if gain > best:
                best = gain
                k = n
        # One that would not pay is tried all the same, or it would never be known that guesses come
        # true again: but the balance at the beginning is for those that promise more.
        if k:
            left, k = (self._costs.balance, k)
        else:
            left, k = (self._costs.balance - FIRST_STEPS, 1)
        while k and left < self._costs.of_walk[k] - 1.0:
            k -= 1
        return following[:k]

    def spent(self, guesses: Sequence[int], logits: Sequence[np.ndarray], seconds: float) -> None:
        """Note what one walk took: of the chosen token alone, or with guesses, whose logits are
        kept."""
        self._costs.spent(len(guesses), seconds)
        if guesses:
            self._proven = list(zip(guesses, logits, strict=True))

    def _likely(self, match: Match) -> float:
        return self._came_true[match] / self._n_tried[match]

    def _note(self, is_true: bool) -> None:
        keep = 1.0 - 1.0 / MEMORY
        self._came_true[self._match] = keep * self._came_true[self._match] + is_true
        self._n_tried[self._match] = keep * self._n_tried[self._match] + 1.0

    def _found(self, most: int) -> Iterator[tuple[Match, list[int]]]:
        """Yield the last match of the end of the tokens here, and the longest in earlier text, with
        what followed."""
        tokens = self._tokens
        length = 0
        for end in range(self._n_indexed, len(tokens)):
            for n in KEYS:
                self._places[tuple(tokens[max(0, end - n) : end])] = end
        self._n_indexed = max(SHORTEST, len(tokens))
        found = (self._places.get(tuple(tokens[-n:])) for n in KEYS)
        place = next((place for place in found if place is not None), None)
        if place is not None:
            length = SHORTEST
            while (
                length < min(LONGEST, place) and tokens[place - length - 1] == tokens[-length - 1]
            ):
                length += 1
            yield (False, length), tokens[place : place + most]
        if self._earlier is not None and length < LONGEST:
            length, following = self._earlier.following(tokens, most)
            if following:
                yield (True, length), following

"""Guesses the next tokens of a reply, so that one run of the plan computes several tokens.

If the last tokens occurred before, in this conversation or in an earlier one, the tokens that
followed them are the guess (prompt lookup; Saxena 2023, as llama.cpp's "lookup").
``Session.generate`` computes them together with the chosen token, bit-identical to one at a time,
and samples as it would without them. So guesses never change a reply; a wrong guess only costs
time. A balance limits that time to a share of the whole.
"""

from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from itertools import takewhile

import numpy as np

from engine.sampling.earlier_text import EarlierText
from engine.sampling.loops import LoopWatch

Match = tuple[bool, int]
"""Whether a match is in an earlier conversation, and its length in tokens."""


class GuessKind(str, Enum):
    """Source of guesses."""

    CONVERSATION = "conversation"
    """Text of the conversation itself, which repeats."""
    EARLIER = "earlier"
    """Text of earlier conversations."""
    PREDICTOR = "predictor"
    """The model's own block for the token after the next."""


ALL_KINDS = frozenset(GuessKind)
MAX_GUESSES = 3
"""Tokens guessed at once. The decode kernels share most work among four tokens, the chosen one
included."""
SHORTEST = 2
"""Tokens of the shortest match."""
LONGEST = 5
"""Tokens of the longest match; a longer one does not predict better."""
KEY_LENGTHS = (4, SHORTEST)
"""Numbers of tokens by which matches are looked up, the best first."""
FIRST_HIT_RATES = {(False, n): 0.15 * n for n in range(SHORTEST, LONGEST + 1)} | {
    (True, n): 0.1 * n - 0.1 for n in range(3, 10)
}
"""Expected share of first guesses that are correct for each match, until it is measured."""
DRAFT: Match = (False, 0)
"""Guess of the model's own predictor, among the kinds of matches."""
FIRST_HIT_RATES[DRAFT] = 0.7
MEMORY = 16.0
"""Weight of the measured rates: about the number of last guesses that count."""
SHARE = 0.007
"""Share of a reply's time that wrong guesses may take."""
FIRST_BALANCE = 2.0
"""A session's balance at the start, in steps of one token."""
MAX_BALANCE = 30.0
"""Largest balance, in steps of one token."""
MIN_PLAIN_STEPS = 8
"""Minimum of steps without guesses that tell how long the reply would have taken."""


class GuessCosts:
    """Time that guesses take in a session.

    Attributes:
        step_s: seconds of a step of one token; 0 before the first.
        run_steps: duration of a run with n guesses, in steps of one token, by n.
        draft_steps: duration of a guess of the predictor, in steps of one token.
        balance: number of steps that wrong guesses may still take.
    """

    def __init__(self) -> None:
        self.step_s = 0.0
        self.run_steps = {n: 1.0 + 0.5 * n for n in range(1, MAX_GUESSES + 1)}
        self._measured: set[int] = set()
        """Numbers of guesses whose runs were measured."""
        self.draft_steps = 0.1
        self._has_drafted = False
        self.balance = FIRST_BALANCE

    def record_run(self, n_guesses: int, seconds: float) -> None:
        """Record the duration of one run."""
        if not n_guesses:
            if not self.step_s:
                self.step_s = seconds
            else:
                self.step_s = 0.8 * self.step_s + 0.2 * seconds
            self.balance = min(MAX_BALANCE, self.balance + SHARE)
            return
        # It takes at least as long as a step. What seems shorter shows that the measured step was
        # slow, which no other step would correct if wrong guesses seemed to cost nothing.
        steps = max(1.0, seconds / self.step_s)
        if n_guesses not in self._measured:
            # The plan of such runs is written on first use.
            steps = min(steps, self.run_steps[n_guesses])
        self.run_steps[n_guesses] = 0.7 * self.run_steps[n_guesses] + 0.3 * steps
        self._measured.add(n_guesses)
        self._expect_longer_runs(n_guesses)
        self.balance -= steps - 1.0

    def _expect_longer_runs(self, n_guesses: int) -> None:
        """Expect no more of runs that were not measured yet than in proportion to a measured one.

        Where memory is the limit, several guesses cost hardly more than one.
        """
        steps_per_guess = (self.run_steps[n_guesses] - 1.0) / n_guesses
        for n in range(n_guesses + 1, MAX_GUESSES + 1):
            if n not in self._measured:
                self.run_steps[n] = min(self.run_steps[n], 1.0 + n * steps_per_guess)

    def record_draft(self, n_guesses: int, seconds: float) -> None:
        """Record the duration of guesses of the predictor.

        The first ones do not count: they bring the predictor into memory.
        """
        if not self._has_drafted:
            self._has_drafted = True
            return
        steps = seconds / self.step_s
        self.draft_steps = 0.7 * self.draft_steps + 0.3 * steps / n_guesses
        self.balance -= steps

    def record_hit(self) -> None:
        """Record a correct guess, which saves a step."""
        self.balance = min(MAX_BALANCE, self.balance + 1.0)


class GuessTally:
    """Guesses of one reply, and the time of its runs.

    Attributes:
        n_tried: number of guesses that were computed, by kind.
        n_right: number of these that came true, by kind.
    """

    def __init__(self) -> None:
        self.n_tried = dict.fromkeys(GuessKind, 0)
        self.n_right = dict.fromkeys(GuessKind, 0)
        self._n_plain = 0
        self._plain_s = 0.0
        self._n_runs = 0
        self._extra_s = 0.0

    def record_run(self, kind: GuessKind, n_guesses: int, seconds: float) -> None:
        """Record a run of a token and guesses, or of a token alone."""
        if not n_guesses:
            self._n_plain += 1
            self._plain_s += seconds
            return
        self.n_tried[kind] += n_guesses
        self._n_runs += 1
        self._extra_s += seconds

    def record_draft(self, seconds: float) -> None:
        """Record the duration of a guess of the predictor."""
        self._extra_s += seconds

    @property
    def saved_s(self) -> float | None:
        """Seconds that the reply would have taken longer without guesses, negative if they cost
        time; None if too few steps without guesses were measured."""
        if self._n_plain < MIN_PLAIN_STEPS:
            return None
        step_s = self._plain_s / self._n_plain
        return (self._n_runs + sum(self.n_right.values())) * step_s - self._extra_s


class Guessing:
    """Guesses of one reply.

    Args:
        tokens: token ids of the conversation so far.
        costs: costs of the session.
        earlier: text of other conversations; None if there is none.
        kinds: kinds of guesses to use.

    Attributes:
        tally: guesses so far.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        costs: GuessCosts,
        earlier: EarlierText | None = None,
        kinds: Collection[GuessKind] = ALL_KINDS,
    ) -> None:
        self.tally = GuessTally()
        self._tokens = list(tokens)
        self._costs = costs
        self._kinds = kinds
        self._earlier: EarlierText | None = None
        if GuessKind.EARLIER in kinds:
            self._earlier = earlier
        self._positions: dict[tuple[int, ...], int] = {}
        """Position after the last occurrence of some tokens."""
        self._n_indexed = SHORTEST
        self._computed: list[tuple[int, np.ndarray]] = []
        """Guesses of the last run that are still possible, with the logits after each."""
        self._n_hits = {match: MEMORY * rate for match, rate in FIRST_HIT_RATES.items()}
        self._n_tries = dict.fromkeys(FIRST_HIT_RATES, MEMORY)
        self._match: Match = (False, SHORTEST)
        self._gain = 0.0
        """Expected gain of the last proposal, in steps of one token."""
        self._loop_watch = LoopWatch()

    def append(self, tokens: Sequence[int]) -> None:
        """Append tokens that are computed without a guess."""
        self._tokens += tokens
        for token in tokens:
            self._loop_watch.append(token)
        self._computed = []

    def take_logits(self, token: int) -> np.ndarray | None:
        """Append the chosen token.

        Returns:
            Logits after the token if it was guessed and computed already, else None.
        """
        self._tokens.append(token)
        self._loop_watch.append(token)
        if not self._computed:
            return None
        guess, logits = self._computed.pop(0)
        is_hit = guess == token
        self._record_try(is_hit)
        if not is_hit:
            self._computed = []
            return None
        self._costs.record_hit()
        self.tally.n_right[_kind_of(self._match)] += 1
        return logits

    def propose(self, limit: int) -> list[int]:
        """Return up to ``limit`` tokens to compute together with the chosen one; empty if that does
        not pay.

        It is empty in a loop, too: faster tokens would only show the user more of it.
        """
        self._gain = 0.0
        if self._loop_watch.is_likely or not self._costs.step_s:
            return []
        candidates = self._matches(min(limit, MAX_GUESSES))
        best = max(candidates, key=lambda candidate: self._hit_rate(candidate[0]), default=None)
        if best is None:
            return []
        self._match, guesses = best
        n, self._gain = self._best_count(self._match, len(guesses))
        if n:
            budget = self._costs.balance
        else:
            # Try one guess although it does not pay, or a better hit rate would never be noticed.
            # The first balance is for guesses that promise more.
            n = 1
            budget = self._costs.balance - FIRST_BALANCE
        while n and budget < self._cost(self._match, n):
            n -= 1
        return guesses[:n]

    def best_draft(self, limit: int, n_proposed: int) -> int:
        """Return the number of guesses of the predictor that promise more than the last proposal; 0
        if none do.

        Args:
            limit: limit on the number.
            n_proposed: number of tokens of the last proposal.
        """
        costs = self._costs
        if GuessKind.PREDICTOR not in self._kinds:
            return 0
        if self._loop_watch.is_likely or not costs.step_s:
            return 0
        n, gain = self._best_count(DRAFT, min(limit, MAX_GUESSES))
        budget = costs.balance
        if not n and not n_proposed:
            # Try one now and then, or a better hit rate would never be noticed.
            n = 1
            budget -= FIRST_BALANCE
        elif gain <= self._gain:
            return 0
        while n and budget < self._cost(DRAFT, n):
            n -= 1
        if n:
            self._match = DRAFT
        return n

    def record_draft(self, n_guesses: int, seconds: float) -> None:
        """Record the duration of guesses of the predictor."""
        self._costs.record_draft(n_guesses, seconds)
        self.tally.record_draft(seconds)

    def record_run(
        self, guesses: Sequence[int], logits: Sequence[np.ndarray], seconds: float
    ) -> None:
        """Record a run of the chosen token and guesses.

        Args:
            logits: logits after each guess.
        """
        self._costs.record_run(len(guesses), seconds)
        self.tally.record_run(_kind_of(self._match), len(guesses), seconds)
        if guesses:
            self._computed = list(zip(guesses, logits, strict=True))

    def _best_count(self, match: Match, limit: int) -> tuple[int, float]:
        """Return the number of guesses that gains most, and the gain in steps of one token; zeros
        if none gains."""
        rate = self._hit_rate(match)
        best_gain = 0.0
        best_count = 0
        for n in range(1, limit + 1):
            n_hits = sum(rate**i for i in range(1, n + 1))
            gain = n_hits - self._cost(match, n)
            if gain > best_gain:
                best_gain = gain
                best_count = n
        return best_count, best_gain

    def _cost(self, match: Match, n: int) -> float:
        """Return the cost of n guesses, in steps of one token."""
        cost = self._costs.run_steps[n] - 1.0
        if match == DRAFT:
            cost += n * self._costs.draft_steps
        return cost

    def _hit_rate(self, match: Match) -> float:
        return self._n_hits[match] / self._n_tries[match]

    def _record_try(self, is_hit: bool) -> None:
        decay = 1.0 - 1.0 / MEMORY
        self._n_hits[self._match] = decay * self._n_hits[self._match] + is_hit
        self._n_tries[self._match] = decay * self._n_tries[self._match] + 1.0

    def _matches(self, limit: int) -> Iterator[tuple[Match, list[int]]]:
        """Yield the last match in this conversation and the longest in earlier text, each with up
        to ``limit`` tokens that followed it."""
        tokens = self._tokens
        length = 0
        position = None
        if GuessKind.CONVERSATION in self._kinds:
            self._index_tokens()
            positions = (self._positions.get(tuple(tokens[-n:])) for n in KEY_LENGTHS)
            position = next((position for position in positions if position is not None), None)
        if position is not None:
            length = SHORTEST
            while (
                length < min(LONGEST, position)
                and tokens[position - length - 1] == tokens[-length - 1]
            ):
                length += 1
            followers = list(takewhile(_is_text, tokens[position : position + limit]))
            if followers:
                yield (False, length), followers

        if self._earlier is not None and length < LONGEST:
            length, guesses = self._earlier.following(tokens, limit)
            if guesses:
                yield (True, length), guesses

    def _index_tokens(self) -> None:
        tokens = self._tokens
        for end in range(self._n_indexed, len(tokens)):
            for n in KEY_LENGTHS:
                self._positions[tuple(tokens[max(0, end - n) : end])] = end
        self._n_indexed = max(SHORTEST, len(tokens))


def _is_text(token: int) -> bool:
    """Whether an id is that of a token, and not that of a picture's row."""
    return token >= 0


def _kind_of(match: Match) -> GuessKind:
    if match == DRAFT:
        return GuessKind.PREDICTOR
    if match[0]:
        return GuessKind.EARLIER
    return GuessKind.CONVERSATION

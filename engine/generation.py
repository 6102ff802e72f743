"""Writing a reply: choose a token, hand out its text, compute it; and again."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine.sampling.guessing import GuessCosts, Guessing
from engine.sampling.logprobs import TokenLogprobs, token_logprobs
from engine.sampling.stopping import StopStrings

if TYPE_CHECKING:
    from engine.cache.cached_tokens import CachedTokens
    from engine.pipeline import Logits
    from engine.sampling.choosing import TokenChooser
    from engine.sampling.earlier_text import EarlierText
    from engine.tokenizer import Tokenizer

SWITCH_INTERVAL_S = 5e-4
"""Python's thread switch interval during generation: other threads get the GIL sooner than after
the default 5 ms."""


@dataclass(frozen=True)
class GeneratedToken:
    """One token of a reply.

    Attributes:
        token_id: 0 to ``vocab_size`` - 1.
        text: text completed by this token; may be empty, never ends inside a character.
        logprobs: of the token, where they were asked for; None for text without a token of its own.
    """

    token_id: int
    text: str
    logprobs: TokenLogprobs | None = None


class ReplySession(Protocol):
    """The part of a session that a reply needs; ``engine.session`` says what each does."""

    n_ctx: int
    finish_reason: str
    cached: CachedTokens
    guess_costs: GuessCosts
    earlier_text: EarlierText | None

    @property
    def length(self) -> int:
        """Number of tokens in the cache."""

    @property
    def next_logits(self) -> Logits:
        """The logits of what comes next, (vocab_size,) float32."""

    @property
    def can_guess(self) -> bool:
        """Whether positions beyond the end may be written for nothing."""

    def advance(self, tokens: list[int]) -> None:
        """Compute chosen tokens."""

    def advance_with_guesses(self, token: int, guesses: list[int]) -> list[Logits] | None:
        """Compute a chosen token and guesses after it; returns the logits after each guess, None if
        cancelled."""

    def accept_guess(self, token: int, logits: Logits) -> None:
        """Keep a guess that was chosen."""


class Generation:
    """A reply of a session; ``Session.generate`` explains the arguments.

    Args:
        choosing: the sampler, held to a form where there is one.
    """

    def __init__(
        self,
        session: ReplySession,
        tokenizer: Tokenizer,
        choosing: TokenChooser,
        stop: Sequence[str] = (),
        after: Sequence[int] = (),
        spelled: Collection[int] = (),
        guess: bool = False,
        n_logprobs: int | None = None,
    ) -> None:
        self._session = session
        self._choosing = choosing
        self._n_logprobs = n_logprobs
        self._stream = tokenizer.stream(spelled)
        self._ends = tokenizer.end_ids
        self._stops = StopStrings(stop)
        self._stops.know("".join(self._stream.push(earlier) for earlier in after))
        self._steps = Steps(session, guess)

    def tokens(self, most: int) -> Iterator[GeneratedToken]:
        """Yield up to ``most`` tokens; afterwards ``finish_reason`` of the session says what ended
        the reply."""
        session = self._session
        token = -1
        left = most
        while not session.finish_reason:
            if left <= 0:
                session.finish_reason = "length"
                break
            chosen = self._choosing.next(session.next_logits, session.cached.ids)[:left]
            if chosen[0] in self._ends:
                session.finish_reason = "stop"
                break
            for at, token in enumerate(chosen):
                yield self._generated(token)
                if self._stops.hit:
                    session.finish_reason = "stop"
                    break
                if session.length + at >= session.n_ctx:
                    session.finish_reason = "context"
                    break
            left -= len(chosen)
            if left and not session.finish_reason:
                self._compute(chosen, left)
        if self._stops.hit:
            rest = ""
        else:
            rest = self._stops.push(self._stream.flush()) + self._stops.flush()
        if rest:
            yield GeneratedToken(token, rest)

    def _generated(self, token: int) -> GeneratedToken:
        n = self._n_logprobs
        if n is None:
            logprobs = None
        else:
            logprobs = token_logprobs(self._session.next_logits, token, n)
        return GeneratedToken(token, self._stops.push(self._stream.push(token)), logprobs)

    def _compute(self, chosen: list[int], left: int) -> None:
        """Compute what was chosen, unless nothing can follow it."""
        if self._choosing.is_over:
            self._session.finish_reason = "stop"
        else:
            self._steps.compute(chosen, left)


class Steps:
    """Computes the tokens of a reply, a token that was chosen together with guesses where that
    pays."""

    def __init__(self, session: ReplySession, guess: bool) -> None:
        self._session = session
        known = session.cached.ids, session.guess_costs, session.earlier_text
        self._guessing = Guessing(*known) if guess else None

    def compute(self, chosen: list[int], left: int) -> None:
        """Compute the next tokens; ``left`` limits those of the reply from here on."""
        if self._guessing is None:
            self._session.advance(chosen)
        elif len(chosen) == 1:
            self._compute_guessing(chosen[0], self._guessing, left)
        else:
            self._guessing.note(chosen)
            self._session.advance(chosen)

    def _compute_guessing(self, token: int, guessing: Guessing, left: int) -> None:
        """Compute a token and guesses of what follows it; these are not part of the session until
        they are chosen."""
        session = self._session
        known = guessing.computed(token)
        if known is not None:
            session.accept_guess(token, known)
            return
        most = min(left, session.n_ctx - session.length) - 1
        if most > 0 and session.can_guess:
            guesses = guessing.propose(most)
        else:
            guesses = []
        started_s = time.perf_counter()
        if guesses:
            rows = session.advance_with_guesses(token, guesses)
        else:
            session.advance([token])
            rows = []
        if rows is not None:
            guessing.spent(guesses, rows, time.perf_counter() - started_s)


class SwitchInterval:
    """Python's thread switch interval, short while any reply is written, then what it was before
    the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_users = 0
        self._before_s = 0.0

    @contextmanager
    def short(self) -> Iterator[None]:
        """Let other threads of Python have their turn sooner meanwhile."""
        with self._lock:
            if not self._n_users:
                self._before_s = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH_INTERVAL_S)
            self._n_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_users -= 1
                if not self._n_users:
                    sys.setswitchinterval(self._before_s)


SWITCH_INTERVAL = SwitchInterval()
"""Of this process: replies of several sessions overlap."""

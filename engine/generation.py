"""Generation of a reply: choose a token, yield its text, compute it, and repeat."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from engine.sampling.guessing import GuessCosts, Guessing, GuessKind, GuessTally
from engine.sampling.logprobs import TokenLogprobs, token_logprobs
from engine.sampling.stopping import StopStrings

if TYPE_CHECKING:
    from engine.cache.cached_tokens import CachedTokens
    from engine.pipeline import Logits
    from engine.sampling.choosing import TokenChooser
    from engine.sampling.earlier_text import EarlierText
    from engine.tokenizer import Tokenizer

SWITCH_INTERVAL_S = 5e-4
"""Python's thread switch interval during generation. With the default of 5 ms other threads would
wait longer for the GIL."""


@dataclass(frozen=True)
class GeneratedToken:
    """Token of a reply, with its text.

    Attributes:
        token_id: 0 to ``vocab_size`` - 1.
        text: text completed by this token. It may be empty and never ends inside a character.
        logprobs: log-probabilities if they were requested, else None. None for text without a token
            of its own.
    """

    token_id: int
    text: str
    logprobs: TokenLogprobs | None = None


class GuessLimits(NamedTuple):
    """Guesses that a session can compute now.

    Attributes:
        n_tokens: limit on the tokens.
        can_draft: whether the model's predictor can guess the tokens after a chosen one.
    """

    n_tokens: int = 0
    can_draft: bool = False


class ReplySession(Protocol):
    """Interface of the session that a reply is generated in; see ``engine.session``."""

    n_ctx: int
    finish_reason: str
    stop_string: str
    cached: CachedTokens
    guess_costs: GuessCosts
    guess_kinds: Collection[GuessKind]
    guess_tally: GuessTally
    earlier_text: EarlierText | None

    @property
    def length(self) -> int:
        """Number of tokens in the cache."""

    @property
    def next_logits(self) -> Logits:
        """Logits for the next token, (vocab_size,) float32."""

    @property
    def guess_limits(self) -> GuessLimits:
        """Guesses that can be computed on trial now and dropped at no cost."""

    def advance(self, tokens: list[int]) -> None:
        """Compute chosen tokens."""

    def draft(self, token: int, n: int) -> list[int] | None:
        """Return the predictor's guesses of the n tokens after a chosen one, or None if
        cancelled."""

    def advance_with_guesses(self, token: int, guesses: list[int]) -> list[Logits] | None:
        """Compute a chosen token and guesses of the next ones; returns the logits after each guess,
        or None if cancelled."""

    def accept_guess(self, token: int, logits: Logits) -> None:
        """Append a correct guess."""


class Generation:
    """Generates one reply. ``Session.generate`` explains the arguments.

    Args:
        chooser: chooses the tokens.
    """

    def __init__(
        self,
        session: ReplySession,
        tokenizer: Tokenizer,
        chooser: TokenChooser,
        stop: Sequence[str] = (),
        after: Sequence[int] = (),
        visible_control_ids: Collection[int] = (),
        guess: bool = False,
        n_logprobs: int | None = None,
    ) -> None:
        self._session = session
        self._chooser = chooser
        self._n_logprobs = n_logprobs
        self._end_ids = tokenizer.end_ids
        self._text_stream = tokenizer.stream(visible_control_ids)
        self._stops = StopStrings(stop)
        self._stops.set_earlier_text("".join(self._text_stream.push(token) for token in after))
        self._steps = ReplySteps(session, guess)

    def tokens(self, max_tokens: int) -> Iterator[GeneratedToken]:
        """Yield up to ``max_tokens`` tokens, then set the session's ``finish_reason``."""
        session = self._session
        token = -1
        n_left = max_tokens
        while not session.finish_reason:
            if n_left <= 0:
                session.finish_reason = "length"
                break
            chosen = self._chooser.next(session.next_logits, session.cached.ids)[:n_left]
            if chosen[0] in self._end_ids:
                session.finish_reason = "stop"
                break

            for index, token in enumerate(chosen):
                yield self._generated(token)
                if self._stops.hit:
                    session.finish_reason = "stop"
                    session.stop_string = self._stops.hit
                    break
                if session.length + index >= session.n_ctx:
                    session.finish_reason = "context"
                    break

            n_left -= len(chosen)
            if n_left and not session.finish_reason:
                self._compute(chosen, n_left)

        if not self._stops.hit:
            text = self._stops.push(self._text_stream.flush()) + self._stops.flush()
            if text:
                yield GeneratedToken(token, text)

    def _generated(self, token: int) -> GeneratedToken:
        logprobs = None
        if self._n_logprobs is not None:
            logprobs = token_logprobs(self._session.next_logits, token, self._n_logprobs)
        return GeneratedToken(token, self._stops.push(self._text_stream.push(token)), logprobs)

    def _compute(self, chosen: list[int], n_left: int) -> None:
        """Compute the chosen tokens, unless the reply is complete."""
        if self._chooser.is_over:
            self._session.finish_reason = "stop"
        else:
            self._steps.compute(chosen, n_left)


class ReplySteps:
    """Computes the tokens of a reply, together with guesses of the next ones where that pays."""

    def __init__(self, session: ReplySession, guess: bool) -> None:
        self._session = session
        self._guessing: Guessing | None = None
        if guess:
            self._guessing = Guessing(
                session.cached.ids, session.guess_costs, session.earlier_text, session.guess_kinds
            )
            session.guess_tally = self._guessing.tally

    def compute(self, chosen: list[int], n_left: int) -> None:
        """Compute the next tokens.

        Args:
            n_left: limit on the tokens of the reply after them.
        """
        if self._guessing is None:
            self._session.advance(chosen)
        elif len(chosen) == 1:
            self._compute_with_guesses(chosen[0], self._guessing, n_left)
        else:
            self._guessing.append(chosen)
            self._session.advance(chosen)

    def _compute_with_guesses(self, token: int, guessing: Guessing, n_left: int) -> None:
        """Compute a token and guesses of the next ones. A guess becomes part of the session when it
        is chosen."""
        session = self._session
        logits = guessing.take_logits(token)
        if logits is not None:
            session.accept_guess(token, logits)
            return

        limits = session.guess_limits
        limit = min(n_left - 1, session.n_ctx - session.length - 1, limits.n_tokens)
        guesses: list[int] = []
        if limit > 0:
            guesses = guessing.propose(limit)
            if limits.can_draft and (n := guessing.best_draft(limit, len(guesses))):
                guesses = self._draft(token, n, guessing)
                if session.finish_reason:
                    return

        start_s = time.perf_counter()
        rows: list[Logits] | None = []
        if guesses:
            rows = session.advance_with_guesses(token, guesses)
        else:
            session.advance([token])
        if rows is not None:
            guessing.record_run(guesses, rows, time.perf_counter() - start_s)

    def _draft(self, token: int, n: int, guessing: Guessing) -> list[int]:
        """Return the predictor's guesses; empty if the reply was cancelled."""
        start_s = time.perf_counter()
        guesses = self._session.draft(token, n)
        if guesses is None:
            return []
        guessing.record_draft(n, time.perf_counter() - start_s)
        return guesses


class SwitchInterval:
    """Python's thread switch interval: short while any reply is generated."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_users = 0
        self._usual_s = 0.0

    @contextmanager
    def short(self) -> Iterator[None]:
        """Make the interval short inside the ``with`` block. Blocks may overlap."""
        with self._lock:
            if not self._n_users:
                self._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH_INTERVAL_S)
            self._n_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_users -= 1
                if not self._n_users:
                    sys.setswitchinterval(self._usual_s)


SWITCH_INTERVAL = SwitchInterval()
"""Switch interval of this process, shared by all sessions."""

"""One conversation's state in the engine: which tokens the cache holds, and how it grows, shrinks
and is continued."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from engine.batch import SHORT_BLOCK, Batch
from engine.cache import context_shift
from engine.cache.cached_tokens import CachedTokens, common_prefix
from engine.errors import BrokenModelError, Cancelled, ContextFullError, EngineError
from engine.generation import SWITCH_INTERVAL, GeneratedToken, Generation, Steps
from engine.kernels.entries import run
from engine.kernels.records import LOGITS
from engine.pipeline import HEAD_TOKENS, Logits
from engine.plan.buffers import SMALL_BATCH_TOKENS
from engine.plan.profile import PhaseTime, Profile
from engine.sampling.choosing import TokenChooser
from engine.sampling.constraint import Constraint
from engine.sampling.guessing import GuessCosts
from engine.sampling.sampler import Sampler
from engine.sampling.settings import Sampling
from engine.weights.weights import FACTORS

if TYPE_CHECKING:
    from engine.cache.hybrid_memory import LayerMemory
    from engine.cache.rotation import Rotation
    from engine.config import ModelConfig, Rope
    from engine.pipeline import Pipeline
    from engine.plan.crew import Crew
    from engine.plan.lookahead import Reading
    from engine.plan.plan import Operation
    from engine.sampling.earlier_text import EarlierText
    from engine.tokenizer import Tokenizer
    from engine.weights.weights import Tensor, Weights

PrefillProgress = Callable[[int, int], None]

SMALL_BATCH_LIMIT = 4
"""Limit on the tokens of one call that use decode's kernels: up to here they beat a prefill block
(PERFORMANCE.md)."""
MIN_SHIFTED_TOKENS = 16
"""Least number of tokens after a gap for which shifting is worth it; fewer are computed again."""
MIN_CHECKPOINT_GAP = 64
"""Least number of tokens between two places that recurrent layers go back to: fewer are sooner
computed again, since a block that ends there costs a walk more."""


@dataclass(frozen=True)
class PrefillResult:
    """Result of a prefill.

    Attributes:
        reused: tokens kept in the cache.
        fed: tokens computed.
        seconds: wall-clock time.
    """

    reused: int
    fed: int
    seconds: float


class ModelProtocol(Protocol):
    """The part of the opened model that sessions use."""

    config: ModelConfig
    tokenizer: Tokenizer
    threads: int
    prefill_threads: int

    @property
    def crew(self) -> Crew:
        """The threads that walk the plans."""

    @property
    def shown_name(self) -> str:
        """The file's name, escaped for a one-line message."""

    @property
    def fingerprint(self) -> str:
        """Identifies the model in saved states, 64 hexadecimal digits."""

    def forget(self, session: Session) -> None:
        """Drop a closed session."""

    def refuse_changed_file(self) -> None:
        """Raise ``ModelChangedError`` if the file was changed since it was opened."""


class Session:
    """A conversation's tokens in a KV cache. Made by ``Model.session``, ended by ``close``.

    One thread at a time may use it; any thread may call ``cancel`` and ``kv_resident_bytes``. Peers
    may be used at the same time.

    Attributes:
        n_ctx: size of the context in tokens.
        finish_reason: how the last ``generate`` ended: ``"stop"``, ``"length"``, ``"context"`` or
            ``"cancelled"``.
        earlier_text: of other conversations, which guesses may come from too; None for none.
        guess_costs: what guesses took by now.
        n_guessed: tokens of the last ``generate`` or ``replay`` that were guessed and chosen.
        model: the model that computes.
        notices: warnings about the context and the cache, one line each.
        cached: the tokens in the cache, for a state writer.
        batch: the line for the model's threads, where this session has peers with threads of their
            own; else None.
    """

    def __init__(
        self, model: ModelProtocol, pipeline: Pipeline, n_ctx: int, notices: Sequence[str] = ()
    ) -> None:
        self.model = model
        self.batch: Batch | None = None
        self.notices = tuple(notices)
        self._pipeline = pipeline
        self.n_ctx = n_ctx
        self.finish_reason = ""
        self.n_guessed = 0
        self.earlier_text: EarlierText | None = None
        self.guess_costs = GuessCosts()
        self.cached = CachedTokens()
        self._tokens = self.cached.ids
        self._is_closed = False
        self._logits: Logits | None = None
        self._has_answered = False
        """Whether the cache ends with a reply."""
        self._cancelled = threading.Event()
        self._profile: Profile | None = None

    @property
    def pipeline(self) -> Pipeline:
        """What computes, for a peer."""
        return self._pipeline

    def join_batch_of(self, peer: Session) -> None:
        """Be another session's peer from now on; ``Model.session`` makes such ones."""
        batch = peer.batch or Batch(self.model.crew)
        for one in (peer, self):
            batch.join(one.pipeline, one.cached.ids)
            one.batch = batch

    @property
    def tokens(self) -> list[int]:
        """Ids of the tokens in the cache, a copy."""
        return list(self._tokens)

    @property
    def length(self) -> int:
        """Number of tokens in the cache, 0 to ``n_ctx``."""
        return len(self._tokens)

    @property
    def kv_type(self) -> str:
        """Type of the KV cache, a key of ``engine.KV_TYPES``."""
        return self._pipeline.kv_type.name

    @property
    def kv_bytes(self) -> int:
        """Bytes for the layers' memory: keys and values, states and the budget of their
        checkpoints."""
        return self.memory.n_bytes

    @property
    def unwritten_bytes(self) -> int:
        """Those of the layers' memory that are not in use yet; the system counts them as
        available."""
        return max(0, self.kv_bytes - (self.kv_resident_bytes() or 0))

    @property
    def kv_bytes_per_position(self) -> float:
        """Bytes of the cache for each token of the context, without what does not depend on it."""
        return (self.memory.n_bytes - self.memory.fixed_bytes) / self.n_ctx

    @property
    def state_bytes(self) -> int:
        """Bytes of recurrent layers' states: each token reads as many, and writes as many."""
        return self.memory.state_bytes

    @property
    def memory(self) -> LayerMemory:
        """The layers' memory of the tokens."""
        return self._pipeline.memory

    @property
    def config(self) -> ModelConfig:
        """The model's shape, with the ropes of this context."""
        return self._pipeline.config

    @property
    def rotations(self) -> Mapping[Rope, Rotation]:
        """Rotation of the keys by position, for each rope of the model."""
        return self._pipeline.rotations

    def adopt(self, ids: Sequence[int]) -> None:
        """Set the tokens of an empty session whose cache was filled directly, as by a restored
        state.

        Raises:
            EngineError: the session is not empty, or an id is out of range.
            ContextFullError: more tokens than the context holds.
        """
        if self._tokens:
            raise EngineError("only an empty session takes over saved tokens")
        self._tokens += self._check_ids(ids)
        self.memory.reach(self.length)

    def kv_resident_bytes(self) -> int | None:
        """Bytes of the cache that are in memory: the written part, in whole pages. None if the
        system does not tell.

        Any thread may call it.
        """
        return self.memory.resident_bytes()

    def feed(
        self, ids: Sequence[int], every: bool = False, on_progress: PrefillProgress | None = None
    ) -> Logits:
        """Append tokens and compute them.

        Args:
            ids: token ids, at least one, each 0 to ``vocab_size`` - 1.
            every: return the logits of every position instead of only the last.
            on_progress: called with (tokens done, tokens in all) after every block.

        Returns:
            Logits: (vocab_size,) float32 of the last position, or (n, vocab_size) float32 with
                ``every``.

        Raises:
            EngineError: no ids, or an id is out of range.
            ContextFullError: more tokens than the context has room for; nothing was computed.
            Cancelled: ``cancel`` was called; finished blocks are kept.
            BrokenModelError: the model computed NaN or infinity; the length is unchanged.
            ModelChangedError: the model file was changed on disk.
        """
        self._begin()
        return self._feed(ids, every, on_progress)

    def score(self, ids: Sequence[int], first: int = 0) -> Iterator[Logits]:
        """Append tokens and yield the logits of those from ``first`` on, some at a time, as fast as
        a prompt is read.

        They come from the kernels of blocks: float32 rounding tells them from those of ``feed``.
        Use up all of it.

        Args:
            ids: token ids, at least one, each 0 to ``vocab_size`` - 1.
            first: number of tokens at the beginning whose logits are not wanted.

        Yields:
            (n, vocab_size) float32, n at most ``engine.pipeline.HEAD_TOKENS``, overwritten by the
            next ones.

        Raises:
            EngineError: the same errors as ``feed``.
        """
        self._begin()
        checked = self._check_ids(ids)
        done = 0
        n_threads = self.model.prefill_threads
        while done < len(checked):
            pos = len(self._tokens)
            end = done + self._pipeline.block_size_at(pos)
            block = checked[done : min(end, first) if done < first else end]
            self.memory.extend(pos + len(block))
            if done < first:
                self._run(self._pipeline.store(block, pos, n_threads, is_small_batch=False))
            else:
                self._run(self._pipeline.whole_block(block, pos, n_threads))
            self._grow(block, None)
            for at in range(0, len(block) if done >= first else 0, HEAD_TOKENS):
                logits = self._pipeline.heads(at, min(HEAD_TOKENS, len(block) - at), n_threads)
                self._run(logits is not None)
                assert logits is not None
                if not np.isfinite(logits).all():
                    raise self.broken()
                yield logits
            done += len(block)

    def watch(self, ids: Sequence[int], look: Callable[[int, Operation], None]) -> None:
        """Append tokens, and show what every matrix of the layers is multiplied with.

        Args:
            ids: token ids, at least one, each 0 to ``vocab_size`` - 1.
            look: called with the number of tokens and a product of them that is about to run.

        Raises:
            EngineError: the same errors as ``feed``, but for those about logits, which are not
                computed.
        """
        self._begin()
        checked = self._check_ids(ids)
        done = 0
        while done < len(checked):
            pos = len(self._tokens)
            block = checked[done : done + self._pipeline.block_size_at(pos)]
            self.memory.extend(pos + len(block))
            n_threads = self.model.prefill_threads
            self._run(
                self._pipeline.watched_block(block, pos, n_threads, partial(look, len(block)))
            )
            self._grow(block, None)
            done += len(block)

    def verify(self, ids: Sequence[int]) -> Logits:
        """Append a few proposed tokens and return the logits of all of them (speculative decoding).

        All weights, the output matrix included, are read once for all tokens. Take rejected tokens
        back with ``truncate``.

        Args:
            ids: one to ``engine.plan.buffers.SMALL_BATCH_TOKENS`` token ids.

        Returns:
            Logits, (n, vocab_size) float32, bit-identical to feeding the tokens one by one.

        Raises:
            EngineError: too many ids; otherwise the same errors as ``feed``.
        """
        self._begin()
        checked = self._check_ids(ids)
        if len(checked) > SMALL_BATCH_TOKENS:
            raise EngineError(f"at most {SMALL_BATCH_TOKENS} tokens are verified at once")
        self.memory.extend(self.length + len(checked))
        with self._turn():
            rows = self._verified(checked, self.model.threads)
        self._grow(checked, rows[-1])
        return np.stack(rows)

    def prefill(
        self,
        ids: Sequence[int],
        on_progress: PrefillProgress | None = None,
        turns: Collection[int] = (),
        n_replied: int = 0,
    ) -> PrefillResult:
        """Make the cache hold exactly ``ids``, computing only the tokens after the longest common
        prefix.

        If layers cannot go back to the end of that prefix, they go back further and more is
        computed. The last token is always computed, for its logits: to the bit as the first time,
        so that the same prompt has the same answer. So a prompt's tokens are computed by the
        kernels of blocks, however few they are, and a reply's by decode's.

        Args:
            ids: token ids of the whole prompt, one to ``n_ctx``.
            on_progress: called with (tokens done, tokens in all) of the computed part after every
                block.
            turns: numbers of tokens before which messages begin or end: recurrent layers will be
                able to go back there.
            n_replied: tokens at the end that are the beginning of a reply, which is gone on with.

        Raises:
            EngineError: the same errors as ``feed``.
        """
        self._begin()
        if len(ids) > self.n_ctx:
            raise self._full(len(ids))
        start = time.monotonic()
        reused = self.truncate(self._shared(ids))
        if self._has_answered or any(0 <= turn - reused < MIN_CHECKPOINT_GAP for turn in turns):
            self.memory.mark()
        self._feed(ids[reused:], False, on_progress, turns, is_prompt=len(ids) - reused > n_replied)
        return PrefillResult(reused, len(ids) - reused, time.monotonic() - start)

    def reusable(self, ids: Sequence[int]) -> int:
        """Return the number of tokens that ``prefill(ids)`` would not compute; nothing is
        changed."""
        n = self._shared(ids)
        if n == self.length:
            return n
        return self.memory.reachable(n)

    def has_lost(self, ids: Sequence[int]) -> bool:
        """Whether ``prefill(ids)`` would compute tokens again because layers cannot go back to
        them."""
        return self.reusable(ids) < self._shared(ids)

    def _shared(self, ids: Sequence[int]) -> int:
        """Return the tokens that a prompt shares with the cache, but for its last, which is always
        computed."""
        return max(0, min(common_prefix(self._tokens, ids), len(ids) - 1))

    def generate(
        self,
        sampling: Sampling,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        after: Sequence[int] = (),
        spelled: Collection[int] = (),
        guess: bool = False,
        n_logprobs: int | None = None,
        constraint: Constraint | None = None,
    ) -> Iterator[GeneratedToken]:
        """Generate tokens after the last token fed, until an end token, a stop string, a limit or
        ``cancel``.

        ``finish_reason`` says which of them it was.

        Args:
            sampling: how tokens are chosen.
            max_tokens: limit on the tokens of this call; None for no limit but the context.
            stop: strings that end the reply and are left out of it.
            after: ids of the reply's beginning that were fed last; a character or a stop string
                that begins in their text is completed by the new tokens.
            spelled: ids of control tokens to spell out as text; all other control tokens have empty
                text.
            guess: compute what repeats the conversation, or ``earlier_text``, several tokens at a
                time. The tokens are the same, for the same seed, with it and without.
            n_logprobs: give each token's log-probability, and those of this many likeliest ones;
                None for none.
            constraint: a form that the reply must have; None for none. Log-probabilities are those
                without it.

        Yields:
            Every token but the end token. Text that may be the start of a stop string is held back
            until that is decided; a piece of text without a token of its own carries the token
            before it.

        Raises:
            BrokenModelError: the model computed NaN or infinity.
            EngineError: nothing was fed yet.
            ModelChangedError: the model file was changed on disk.
        """
        if self._logits is None:
            raise EngineError("nothing to continue: feed the prompt first")
        self._begin()
        self.finish_reason = ""
        self.n_guessed = 0
        tokenizer = self.model.tokenizer
        sampler = Sampler(
            sampling, self.config.vocab_size, tokenizer.end_ids, tokenizer.spelled_bytes
        )
        # Decode's kernels compute as many together to the bit as one by one.
        choosing = TokenChooser(
            sampler, constraint, tokenizer.end_ids, SMALL_BATCH_LIMIT if n_logprobs is None else 1
        )
        reply = Generation(self, tokenizer, choosing, stop, after, spelled, guess, n_logprobs)
        writing = nullcontext() if self.batch is None else self.batch.writing(self._pipeline)
        with SWITCH_INTERVAL.short(), writing:
            for generated in reply.tokens(self.n_ctx + 1 if max_tokens is None else max_tokens):
                if self._pipeline.profile and self._profile is not None:
                    self._profile.leave()
                    yield generated
                    self._profile.enter()
                else:
                    yield generated

    def replay(self, ids: Sequence[int], guess: bool) -> int:
        """Feed tokens as ``generate`` feeds those it chooses, with guesses or without: for
        measurements on real text.

        Returns:
            Number of tokens that were guessed.

        Raises:
            EngineError: the same errors as ``feed``.
        """
        self._begin()
        self.finish_reason = ""
        self.n_guessed = 0
        steps = Steps(self, guess)
        for n, token in enumerate(self._check_ids(ids)):
            steps.compute([token], len(ids) - n)
        return self.n_guessed

    @property
    def next_logits(self) -> Logits:
        """The logits of what comes next, (vocab_size,) float32.

        Raises EngineError: nothing was fed yet.
        """
        if self._logits is None:
            raise EngineError("nothing to continue: feed the prompt first")
        return self._logits

    def advance(self, tokens: list[int]) -> None:
        """Compute chosen tokens of a reply, which ends where it was cancelled."""
        try:
            self._feed(tokens, False, None)
            self._has_answered = True
        except Cancelled:
            self.finish_reason = "cancelled"

    @property
    def can_guess(self) -> bool:
        """Whether positions beyond the end may be written for nothing; a profile knows no such
        walks."""
        is_free = (
            self.memory.may_overrun and self.memory.reachable(self.length - 1) == self.length - 1
        )
        return is_free and not self._pipeline.profile and not self._others_wait

    def advance_with_guesses(self, token: int, guesses: list[int]) -> list[Logits] | None:
        """Compute a chosen token and, in the same walk, tokens that may follow it; only the first
        one is kept.

        Returns:
            The logits after each of the guesses; None where the reply was cancelled.
        """
        try:
            ids = self._check_ids([token, *guesses])
            self.memory.extend(self.length + len(ids))
            with self._turn():
                rows = self._verified(ids, self.model.threads)
        except Cancelled:
            self.finish_reason = "cancelled"
            return None
        self._grow([token], rows[0])
        return rows[1:]

    def accept_guess(self, token: int, logits: Logits) -> None:
        """Keep a guess that was chosen, with the logits that ``advance_with_guesses`` returned for
        it."""
        if self._cancelled.is_set():
            self.finish_reason = "cancelled"
        else:
            self._grow([token], logits)
            self.n_guessed += 1

    def truncate(self, n: int) -> int:
        """Drop every token after the first n, and more if layers cannot go back to n.

        Args:
            n: tokens to keep; n at or above ``length`` changes nothing.

        Returns:
            Number of tokens left.

        Raises:
            EngineError: n is negative.
        """
        if n < 0:
            raise EngineError(f"cannot keep {n} tokens")
        if n < len(self._tokens):
            self._rewind(n)
        return len(self._tokens)

    def _rewind(self, n: int) -> None:
        """Take the layers back to n tokens, or to fewer if they cannot stop there."""
        before = len(self._tokens)
        if n < before:
            self.cached.cut(n)
        left = self.memory.rewind(n)
        if left < n:
            self.cached.cut(left)
        if len(self._tokens) < before:
            self._logits = None
            self._has_answered = False

    def shift(self, n_keep: int, n_drop: int) -> None:
        """Drop tokens n_keep to n_keep + n_drop; those after move down, their keys rotated to the
        new positions.

        The moved keys and values were computed with the dropped tokens in view, so results differ
        slightly from computing them again: PERFORMANCE.md has the measured difference.

        Raises:
            EngineError: the session holds fewer tokens, or the layers' memory cannot be moved.
        """
        length = self.length
        if n_keep < 0 or n_drop < 1 or n_keep + n_drop > length:
            raise EngineError(f"cannot forget {n_drop} tokens after {n_keep}: there are {length}")
        rest = self._tokens[n_keep + n_drop :]
        if not rest:
            self.truncate(n_keep)
            return
        if not self.memory.can_shift(n_keep, n_drop, length):
            raise EngineError(
                "this model's layers cannot forget these tokens from the midst of a conversation"
            )
        self.cached.cut(n_keep)
        self._logits = None
        self.memory.shift(n_keep, n_drop, length)
        self._tokens += rest

    def shift_towards(self, ids: Sequence[int]) -> int:
        """Shift if the cache equals the beginning of ``ids`` except for one run of tokens missing
        from ``ids``.

        Call it before ``prefill(ids)``, which then computes only the new tokens.

        Returns:
            Number of tokens dropped from the cache, 0 if it was left alone.
        """
        gap = context_shift.find_gap(self._tokens, ids, MIN_SHIFTED_TOKENS)
        if gap is None or not self.memory.can_shift(*gap, self.length):
            return 0
        self.shift(*gap)
        return gap[1]

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """On leaving, drop all tokens fed inside and restore the state from before, the next logits
        included.

        Costs the conversation nothing, since positions after the length are unused. Tokens dropped
        inside, by ``truncate``, stay dropped.
        """
        length = self.length
        logits = self._logits
        self.memory.keep(length)
        watch = self.cached.watch()
        with self.cached.trying():
            try:
                yield
            finally:
                kept = min(length, watch.stands())
                self.cached.unwatch(watch)
                if self.truncate(kept) == length:
                    self._logits = logits
                self.memory.release()

    def stretch(self, n: int) -> None:
        """Fill the cache to n tokens by copying its keys and values, without computing: a context
        for measurements.

        ``length`` and n must be multiples of eight. Text generated after it is meaningless: use it
        inside ``restoring``.

        Raises:
            ContextFullError: n is larger than the context.
        """
        length = self.length
        if n > self.n_ctx:
            raise self._full(n)
        if n > length:
            self.memory.repeat(length, n)
            self._tokens += [self._tokens[i % length] for i in range(length, n)]
            self._logits = None

    def matrices(self) -> list[Tensor]:
        """Return the model's matrices that a decode step multiplies, where they are now; adapters'
        tell no speed."""
        found = self._pipeline.plans["decode"].matrices()
        return [one for one in found if not one.name.endswith(FACTORS)]

    def reading(self, n_threads: int) -> Reading:
        """Return how a number of threads reads the weights in a decode step."""
        return self._pipeline.reading(n_threads)

    def look_ahead(self) -> None:
        """Ask memory ahead as it is chosen now (``engine.plan.lookahead``), from the next step
        on."""
        self._pipeline.look_ahead()

    def use_weights(self, weights: Weights, keep_others: bool) -> None:
        """Read the weights from another place from the next step on; called by the model."""
        self._pipeline.use_weights(weights, keep_others)

    def begin_again(self) -> None:
        """Drop all tokens and write the plans again, because the weights compute something else; by
        the model."""
        self.truncate(0)
        is_timed = bool(self._pipeline.profile)
        self._profile = None
        self._pipeline.profile = {}
        self._pipeline.write_again()
        if is_timed:
            self.start_profile()

    def cancel(self) -> None:
        """End the running call, from any thread: ``feed`` and ``prefill`` raise ``Cancelled``,
        ``generate`` ends."""
        self._cancelled.set()
        if self.batch is None:
            self.model.crew.cancel()
        else:
            self.batch.cancel(self._pipeline)

    def start_profile(self) -> None:
        """Start timing every operation, with all times at zero."""
        if self._profile is None:
            self._profile = Profile(
                {name: plan.operations for name, plan in self._pipeline.plans.items()}
            )
        self._profile.reset()
        self._pipeline.profile = self._profile.tables

    def read_profile(self) -> dict[str, list[PhaseTime]]:
        """Return the phases so far, as ``end_profile`` does; timing continues."""
        if self._profile is not None and self._pipeline.profile:
            return self._profile.phases()
        return {}

    def end_profile(self) -> dict[str, list[PhaseTime]]:
        """Stop timing; returns the phases of ``"decode"``, and of the plans of prompts.

        Those are ``"small batch"`` and ``"block"``, and ``"small batch last"`` and ``"block last"``
        for a prompt's last token.
        """
        phases = self.read_profile()
        self._pipeline.profile = {}
        return phases

    def close(self) -> None:
        """Release the cache; the session cannot be used afterwards. Closing twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        self.truncate(0)
        self.model.forget(self)
        if self.batch is not None:
            self.batch.leave(self._pipeline)
        del self._pipeline

    def _begin(self) -> None:
        self._cancelled.clear()
        if self.batch is None:
            self.model.crew.clear_cancel()
        self.model.refuse_changed_file()

    @property
    def _others_wait(self) -> bool:
        return self.batch is not None and self.batch.others_wait(self._pipeline)

    def _turn(self) -> AbstractContextManager[None]:
        """Have the model's threads for what is computed meanwhile."""
        if self.batch is None:
            return nullcontext()
        return self.batch.turn(self._pipeline)

    def _feed(
        self,
        ids: Sequence[int],
        every: bool,
        on_progress: PrefillProgress | None,
        turns: Collection[int] = (),
        is_prompt: bool = False,
    ) -> Logits:
        checked = self._check_ids(ids)
        length = len(self._tokens)
        rows: list[Logits] = []
        try:
            done = 0
            while done < len(checked):
                if self.batch is not None and is_prompt:
                    n = self.batch.copy_shared(self._pipeline, [*self._tokens, *checked[done:]])
                    self._tokens += checked[done : n - length]
                    done = n - length
                columns = self._pipeline.block_size_at(len(self._tokens))
                if self._others_wait:
                    columns = min(columns, SHORT_BLOCK)
                upto = min(done + columns, self._next_turn(turns, length + len(checked)) - length)
                rows += self._feed_block(checked[done:upto], every, upto >= len(checked), is_prompt)
                done = len(self._tokens) - length
                if done < len(checked) and len(self._tokens) in turns:
                    self.memory.mark()
                if on_progress is not None:
                    on_progress(done, len(checked))
        except BrokenModelError:
            self.truncate(length)
            raise
        if every:
            return np.stack(rows)
        return rows[-1]

    def _next_turn(self, turns: Collection[int], end: int) -> int:
        """Return where a block ends, at the latest, so that layers can go back to where the
        conversation turns."""
        later = (turn for turn in turns if len(self._tokens) < turn < end)
        return min(
            (turn for turn in later if turn - self.memory.kept_before(turn) >= MIN_CHECKPOINT_GAP),
            default=end,
        )

    def _feed_block(self, ids: list[int], every: bool, ends: bool, is_prompt: bool) -> list[Logits]:
        """Compute one block; the length grows only when all of it is done.

        Args:
            every: return the logits of all tokens.
            ends: return those of the last token, which the blocks of a prompt but its last do
                without.
            is_prompt: use the kernels of blocks for few tokens, too.
        """
        pos = len(self._tokens)
        self.memory.extend(pos + len(ids))
        is_small_batch = len(ids) <= SMALL_BATCH_LIMIT and not is_prompt
        if is_small_batch:
            n_threads = self.model.threads
        else:
            n_threads = self.model.prefill_threads
        if self.batch is not None and len(ids) == 1 and not is_prompt:
            rows = [self._stepped(self.batch, ids[0], pos, n_threads)]
        else:
            with self._turn():
                self._run(not self._cancelled.is_set())
                rows = self._computed(ids, every, ends, is_prompt, n_threads)
        self._grow(ids, rows[-1] if rows else None)
        return rows

    def _stepped(self, batch: Batch, token: int, pos: int, n_threads: int) -> Logits:
        """Compute a token together with those that other sessions ask for."""
        logits = batch.step(self._pipeline, token, pos, n_threads)
        self._run(logits is not None)
        return self._finite_logits(logits)

    def _computed(
        self, ids: list[int], every: bool, ends: bool, is_prompt: bool, n_threads: int
    ) -> list[Logits]:
        pos = len(self._tokens)
        is_small_batch = len(ids) <= SMALL_BATCH_LIMIT and not is_prompt
        if len(ids) == 1 and not is_prompt:
            self._run(self._pipeline.decode(ids[0], pos, n_threads))
            rows = [self._finite_logits()]
        elif is_small_batch and every:
            rows = self._verified(ids, n_threads)
        elif every:
            self._run(self._pipeline.whole_block(ids, pos, n_threads))
            rows = []
            for column in range(len(ids)):
                self._run(self._pipeline.head(column, n_threads))
                rows.append(self._finite_logits())
        else:
            self._run(self._pipeline.store(ids, pos, n_threads, is_small_batch))
            rows = []
            if ends:
                self._run(self._pipeline.last(n_threads, is_small_batch))
                rows = [self._finite_logits()]
        return rows

    def _verified(self, ids: list[int], n_threads: int) -> list[Logits]:
        """Compute a few tokens and all their logits in one walk of the plan."""
        self._run(self._pipeline.verify(ids, len(self._tokens), n_threads))
        return [self._finite_logits(row) for row in self._pipeline.every_logits[: len(ids)]]

    def _grow(self, ids: list[int], logits: Logits | None) -> None:
        """Append computed tokens to the session; without logits it cannot be continued until more
        is fed."""
        self._tokens += ids
        self._logits = logits
        self._has_answered = False
        self.memory.reach(len(self._tokens))

    def _run(self, finished: bool) -> None:
        if not finished or self._cancelled.is_set():
            self._rewind(len(self._tokens))  # some layers may be further than others
            raise Cancelled("stopped")

    def _finite_logits(self, computed: Logits | None = None) -> Logits:
        if computed is None:
            computed = self._pipeline.logits
        logits: Logits = np.empty_like(computed)
        if not run("copy logits", LOGITS, logits=computed, n=len(computed), out=logits)[
            LOGITS.result // 8
        ]:
            self._rewind(len(self._tokens))
            raise self.broken()
        return logits

    def broken(self) -> BrokenModelError:
        """The error of a model that computes NaN or infinity."""
        return BrokenModelError(
            f"{self.model.shown_name}: the model computed NaN or infinity: its weights are "
            f"damaged (download it again)"
        )

    def _check_ids(self, ids: Sequence[int]) -> list[int]:
        checked = [int(token) for token in ids]
        if not checked:
            raise EngineError("no tokens to feed")
        if min(checked) < 0 or max(checked) >= self.model.config.vocab_size:
            raise EngineError(f"token ids must be 0 to {self.model.config.vocab_size - 1}")
        if len(self._tokens) + len(checked) > self.n_ctx:
            raise self._full(len(self._tokens) + len(checked))
        return checked

    def _full(self, wanted: int) -> ContextFullError:
        return ContextFullError(
            f"{wanted:,} tokens do not fit into the context of {self.n_ctx:,} (start again, "
            f"or open a larger context)"
        )

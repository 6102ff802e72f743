"""Session of the engine: the tokens of a conversation in a KV cache, and its replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from engine.batch import SHORT_BLOCK, Batch
from engine.cache import context_shift
from engine.cache.cached_tokens import CachedTokens, common_prefix
from engine.cache.moved_spans import MovedSpan, find_spans, joined_spans
from engine.cache.picture_ids import LOWEST_ID, PictureSpan, grid_positions, part_start, spans_in
from engine.config import CAUSAL
from engine.errors import BrokenModelError, Cancelled, ContextFullError, EngineError
from engine.forward_pass import SMALL_BATCH_LIMIT, ForwardPass, ModelProtocol
from engine.generation import SWITCH_INTERVAL, GeneratedToken, Generation, GuessLimits
from engine.plan.buffers import SMALL_BATCH_TOKENS
from engine.profiler import Profiler
from engine.sampling.choosing import TokenChooser
from engine.sampling.constraint import Constraint
from engine.sampling.guessing import ALL_KINDS, GuessCosts, GuessKind, GuessTally
from engine.sampling.sampler import Sampler
from engine.sampling.settings import Sampling

if TYPE_CHECKING:
    from engine.cache.hybrid_memory import LayerMemory
    from engine.cache.rotation import Rotation
    from engine.config import ModelConfig, Rope
    from engine.pipeline import Logits, Pipeline
    from engine.sampling.earlier_text import EarlierText
    from engine.vision.known import KnownPictures

PrefillProgress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all)."""

MIN_SHIFTED_TOKENS = 16
"""Minimum of tokens after a gap for a shift; fewer are computed again."""
MIN_CHECKPOINT_GAP = 64
"""Minimum of tokens between two checkpoints of recurrent layers. A block ends at each checkpoint,
which costs one more run."""


@dataclass(frozen=True)
class PrefillResult:
    """Result of a prefill.

    Attributes:
        reused: number of tokens that were in the cache already.
        fed: number of tokens computed.
        seconds: wall-clock time.
    """

    reused: int
    fed: int
    seconds: float


class SessionModel(ModelProtocol, Protocol):
    """Interface of the opened model that owns the sessions.

    Attributes:
        pictures: pictures that prompts may contain.
    """

    pictures: KnownPictures

    def forget(self, session: Session) -> None:
        """Remove a closed session."""


class Session:
    """Tokens of one conversation in a KV cache. Made by ``Model.session``, ended by ``close``.

    One thread at a time may use a session. Any thread may call ``cancel`` and
    ``kv_resident_bytes``. Peers may be used at the same time.

    Attributes:
        model: model that computes.
        n_ctx: size of the context in tokens.
        notices: warnings about the context and the cache, one line each.
        finish_reason: reason for the end of the last ``generate``: ``"stop"``, ``"length"``,
            ``"context"`` or ``"cancelled"``.
        stop_string: stop string that ended the last ``generate``; empty if none did.
        n_guessed: number of tokens of the last ``generate`` that were guessed correctly.
        earlier_text: text of other conversations to take guesses from; None if there is none.
        guess_costs: measured time of guesses.
        guess_kinds: kinds of guesses to use.
        guess_tally: guesses of the last ``generate`` by kind, and the time that they saved.
        cached: tokens in the cache, for a state writer.
        min_moved_tokens: minimum of tokens of a span that ``prefill`` moves to another position
            instead of computing it again; 0 to move none.
        forward: computes the tokens.
        profiler: times the operations of this session.
    """

    def __init__(
        self, model: SessionModel, pipeline: Pipeline, n_ctx: int, notices: Sequence[str] = ()
    ) -> None:
        self.model = model
        self.n_ctx = n_ctx
        self.notices = tuple(notices)
        self.forward = ForwardPass(model, pipeline)
        self.profiler = Profiler(pipeline)
        self.cached = CachedTokens()
        self._logits: Logits | None = None
        self._last_was_decoded = False
        self.finish_reason = ""
        self.stop_string = ""
        self.n_guessed = 0
        self.earlier_text: EarlierText | None = None
        self.guess_costs = GuessCosts()
        self.guess_kinds: Collection[GuessKind] = ALL_KINDS
        self.guess_tally = GuessTally()
        self.min_moved_tokens = 0
        self._is_closed = False

    # ---- properties

    @property
    def pipeline(self) -> Pipeline:
        """Plans and memory of this session."""
        return self.forward.pipeline

    @property
    def batch(self) -> Batch | None:
        """Queue for the model's threads, shared with the peers; None if there are no peers."""
        return self.forward.batch

    @property
    def tokens(self) -> list[int]:
        """Copy of the token ids in the cache."""
        return list(self.cached.ids)

    @property
    def length(self) -> int:
        """Number of tokens in the cache, 0 to ``n_ctx``."""
        return len(self.cached.ids)

    @property
    def config(self) -> ModelConfig:
        """Shape of the model, with the ropes of this context."""
        return self.pipeline.config

    @property
    def memory(self) -> LayerMemory:
        """Memory of the layers: KV cache and recurrent states."""
        return self.pipeline.memory

    @property
    def rotations(self) -> Mapping[Rope, Rotation]:
        """Rotation of the keys by position, for each rope of the model."""
        return self.pipeline.rotations

    @property
    def kv_type(self) -> str:
        """Type of the KV cache, a key of ``engine.KV_TYPES``."""
        return self.pipeline.kv_type.name

    @property
    def kv_bytes(self) -> int:
        """Size of the layers' memory in bytes: KV cache, states and the budget of checkpoints."""
        return self.memory.n_bytes

    @property
    def kv_bytes_per_position(self) -> float:
        """Bytes of the KV cache for each token of the context."""
        return (self.memory.n_bytes - self.memory.fixed_bytes) / self.n_ctx

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent states. Each token reads and writes all of them."""
        return self.memory.state_bytes

    def kv_resident_bytes(self) -> int | None:
        """Return the bytes of the cache that are in memory; None if the system does not say.

        Any thread may call it.
        """
        return self.memory.resident_bytes()

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of the layers' memory that are not in use yet, which the system counts as
        available."""
        return max(0, self.kv_bytes - (self.kv_resident_bytes() or 0))

    # ---- computing tokens

    def feed(
        self,
        ids: Sequence[int],
        all_logits: bool = False,
        on_progress: PrefillProgress | None = None,
    ) -> Logits:
        """Append tokens and compute them.

        Args:
            ids: token ids, at least one, each 0 to ``vocab_size`` - 1; and the ids of pictures
                that the model knows.
            all_logits: return the logits of every position instead of only the last.
            on_progress: called with (tokens done, tokens in all) after every block.

        Returns:
            Logits: (vocab_size,) float32 of the last position, or (n, vocab_size) float32 with
                ``all_logits``. Rows of pictures have none.

        Raises:
            EngineError: no ids, an id is out of range, or a picture is not known.
            ContextFullError: more tokens than fit into the context; nothing was computed.
            Cancelled: ``cancel`` was called; finished blocks stay in the cache.
            BrokenModelError: the model computed NaN or infinity; the length is unchanged.
            ModelChangedError: the model file was changed on disk.
        """
        self.forward.start()
        return self._feed(ids, all_logits=all_logits, on_progress=on_progress)

    def verify(self, ids: Sequence[int]) -> Logits:
        """Append a few proposed tokens and return the logits of all of them (speculative decoding).

        All weights are read once for all tokens. Remove rejected tokens with ``truncate``.

        Args:
            ids: one to ``engine.plan.buffers.SMALL_BATCH_TOKENS`` token ids.

        Returns:
            Logits, (n, vocab_size) float32, bit-identical to feeding the tokens one by one.

        Raises:
            EngineError: too many ids; otherwise the same errors as ``feed``.
        """
        self.forward.start()
        checked = self.check_ids(ids)
        if len(checked) > SMALL_BATCH_TOKENS:
            raise EngineError(f"at most {SMALL_BATCH_TOKENS} tokens are verified at once")
        rows = self._verify(checked)
        self._append(checked, rows[-1])
        return np.stack(rows)

    def prefill(
        self,
        ids: Sequence[int],
        on_progress: PrefillProgress | None = None,
        checkpoint_positions: Collection[int] = (),
        n_replied: int = 0,
    ) -> PrefillResult:
        """Make the cache hold exactly ``ids``, computing only the tokens after the longest common
        prefix.

        If layers cannot go back to the end of that prefix, they go back further and more tokens are
        computed. The last token is always computed, for its logits.

        The same prompt always gets the same logits, to the bit: a prompt's tokens are computed by
        the block kernels, however few they are, and a reply's tokens by the decode kernels. With
        ``min_moved_tokens`` they differ slightly, since long spans that stand elsewhere in the
        cache are moved (``engine.cache.moved_spans``).

        Args:
            ids: token ids of the whole prompt, one to ``n_ctx``.
            on_progress: called with (tokens done, tokens in all) of the computed part after every
                block.
            checkpoint_positions: positions where recurrent layers make checkpoints: the beginnings
                and ends of messages.
            n_replied: number of tokens at the end that begin the reply to be continued.

        Raises:
            EngineError: the same errors as ``feed``.
        """
        self.forward.start()
        if len(ids) > self.n_ctx:
            raise _context_full(len(ids), self.n_ctx)
        start_s = time.monotonic()
        spans = _spans_to_move(self, ids)
        reused = self.truncate(_usable_prefix(self, ids))
        if self._last_was_decoded or any(
            0 <= position - reused < MIN_CHECKPOINT_GAP for position in checkpoint_positions
        ):
            self.memory.make_checkpoint()
        if spans:
            _feed_around(self, ids, spans)
            reused += sum(span.n for span in spans)
        self._feed(
            ids[self.length :],
            on_progress=on_progress,
            checkpoint_positions=checkpoint_positions,
            is_prompt=len(ids) - reused > n_replied,
        )
        return PrefillResult(reused, len(ids) - reused, time.monotonic() - start_s)

    def reusable(self, ids: Sequence[int]) -> int:
        """Return the number of tokens that ``prefill(ids)`` would not compute."""
        n = _usable_prefix(self, ids)
        if n < self.length:
            n = self.memory.reachable(n)
        return n + sum(span.n for span in _spans_to_move(self, ids))

    def has_lost(self, ids: Sequence[int]) -> bool:
        """Whether ``prefill(ids)`` would compute tokens of the cache again because layers cannot go
        back to them."""
        return self.reusable(ids) < _shared_prefix(self.cached.ids, ids)

    # ---- writing a reply

    def generate(
        self,
        sampling: Sampling,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        after: Sequence[int] = (),
        visible_control_ids: Collection[int] = (),
        guess: bool = False,
        n_logprobs: int | None = None,
        constraint: Constraint | None = None,
    ) -> Iterator[GeneratedToken]:
        """Generate tokens after the last token in the cache, until an end token, a stop string, a
        limit or ``cancel``. ``finish_reason`` then says which of these it was.

        Args:
            sampling: settings of the sampler.
            max_tokens: limit on the tokens of this call; None for no limit but the context.
            stop: strings that end the reply and are left out of it.
            after: ids of the beginning of the reply, which were fed last. A character or a stop
                string that begins in their text is completed by the new tokens.
            visible_control_ids: ids of control tokens to spell out as text. All other control
                tokens have empty text.
            guess: compute text that repeats the conversation, or ``earlier_text``, several tokens
                at a time. The same seed gives the same tokens with it and without.
            n_logprobs: number of most likely tokens whose log-probabilities come with each token;
                None for no log-probabilities.
            constraint: form that the reply must have; None for free text. Log-probabilities ignore
                it.

        Yields:
            Every token but the end token. Text that may be the start of a stop string waits until
            that is decided. Text without a token of its own carries the id of the token before it.

        Raises:
            BrokenModelError: the model computed NaN or infinity.
            EngineError: the cache has no logits to continue from.
            ModelChangedError: the model file was changed on disk.
        """
        if self._logits is None:
            raise EngineError("nothing to continue: feed the prompt first")
        self.start_reply()
        tokenizer = self.model.tokenizer
        sampler = Sampler(
            sampling, self.config.vocab_size, tokenizer.end_ids, tokenizer.spelled_bytes
        )
        # Forced tokens are computed together, with the same bits as one at a time.
        max_forced = SMALL_BATCH_LIMIT if n_logprobs is None else 1
        chooser = TokenChooser(sampler, constraint, tokenizer.end_ids, max_forced)
        reply = Generation(
            self, tokenizer, chooser, stop, after, visible_control_ids, guess, n_logprobs
        )
        if max_tokens is None:
            max_tokens = self.n_ctx + 1

        writing = nullcontext() if self.batch is None else self.batch.writing(self.pipeline)
        with SWITCH_INTERVAL.short(), writing:
            for token in reply.tokens(max_tokens):
                self.profiler.leave_engine()
                yield token
                self.profiler.enter_engine()

    def start_reply(self) -> None:
        """Start a reply: reset ``finish_reason``, ``stop_string`` and the number of guesses."""
        self.forward.start()
        self.finish_reason = ""
        self.stop_string = ""
        self.n_guessed = 0
        self.guess_tally = GuessTally()

    @property
    def next_logits(self) -> Logits:
        """Logits for the next token, (vocab_size,) float32.

        Raises EngineError: the cache has no logits to continue from.
        """
        if self._logits is None:
            raise EngineError("nothing to continue: feed the prompt first")
        return self._logits

    def advance(self, tokens: list[int]) -> None:
        """Compute chosen tokens of a reply; ``cancel`` ends the reply."""
        try:
            self._feed(tokens)
            self._last_was_decoded = True
        except Cancelled:
            self.finish_reason = "cancelled"

    @property
    def guess_limits(self) -> GuessLimits:
        """Guesses that can be computed on trial now and dropped at no cost."""
        if self.forward.has_waiting_peers:
            return GuessLimits()
        if not self.memory.can_drop_guesses(self.length):
            return GuessLimits()
        predictor = self.pipeline.predictor
        can_draft = predictor is not None and predictor.hidden.has(self.length)
        return GuessLimits(self.memory.max_guesses, can_draft)

    def draft(self, token: int, n: int) -> list[int] | None:
        """Return the predictor's guesses of the n tokens after a chosen one; None if the reply was
        cancelled."""
        self.memory.reserve_trial(self.length, self.length + n)
        self.pipeline.position_offset = self.cached.position_offset
        try:
            return self.forward.draft(token, self.cached.ids, n)
        except Cancelled:
            self._rewind(self.length)
            self.finish_reason = "cancelled"
            return None

    def advance_with_guesses(self, token: int, guesses: list[int]) -> list[Logits] | None:
        """Compute a chosen token, and in the same run tokens that may follow it. Only the chosen
        token stays in the cache.

        Returns:
            Logits after each of the guesses; None if the reply was cancelled.
        """
        try:
            rows = self._verify(self.check_ids([token, *guesses]))
        except Cancelled:
            self.finish_reason = "cancelled"
            return None
        self._append([token], rows[0])
        return rows[1:]

    def accept_guess(self, token: int, logits: Logits) -> None:
        """Append a correct guess, with its logits from ``advance_with_guesses``."""
        if self.forward.is_cancelled:
            self.finish_reason = "cancelled"
        else:
            self._append([token], logits)
            self.n_guessed += 1

    # ---- dropping tokens

    def truncate(self, n: int) -> int:
        """Drop every token after the first n, and more if layers cannot go back to n.

        Args:
            n: number of tokens to keep. At or above ``length`` nothing changes.

        Returns:
            Number of tokens in the cache.

        Raises:
            EngineError: n is negative.
        """
        if n < 0:
            raise EngineError(f"cannot keep {n} tokens")
        if n < self.length:
            self._rewind(n)
        return self.length

    def _rewind(self, n: int) -> None:
        """Rewind the layers to n tokens, or to fewer if they cannot go back to n."""
        length = self.length
        if n < length:
            self.cached.cut(n)
        n_reached = self.memory.rewind(n)
        if n_reached < n:
            self.cached.cut(n_reached)
        if self.length < length:
            self._logits = None
            self._last_was_decoded = False

    def shift(self, n_keep: int, n_drop: int) -> None:
        """Drop ``n_drop`` tokens after the first ``n_keep``. Later tokens move down, and their keys
        are rotated to the new positions.

        The moved keys and values were computed with the dropped tokens in view, so results differ
        slightly from computing them again (see PERFORMANCE.md).

        Raises:
            EngineError: the session holds fewer tokens, or the layers' memory cannot be moved.
        """
        length = self.length
        if n_keep < 0 or n_drop < 1 or n_keep + n_drop > length:
            raise EngineError(f"cannot forget {n_drop} tokens after {n_keep}: there are {length}")
        if any(part_start(self.cached.ids, n) < n for n in (n_keep, n_keep + n_drop)):
            raise EngineError("a picture can only be forgotten as a whole")
        moved = self.cached.ids[n_keep + n_drop :]
        if not moved:
            self.truncate(n_keep)
            return
        if not self.memory.can_shift(n_keep, n_drop, length):
            raise EngineError(
                "this model's layers cannot forget these tokens from the midst of a conversation"
            )
        n_turned = self.cached.n_positions(n_keep, n_keep + n_drop)
        self.cached.cut(n_keep)
        self._logits = None
        self.memory.shift(n_keep, n_drop, length, n_turned)
        self.cached.append(moved)

    def shift_towards(self, ids: Sequence[int]) -> int:
        """Shift if the cache is the beginning of ``ids`` except for one run of dropped tokens.

        Call it before ``prefill(ids)``, which then computes only the new tokens.

        Returns:
            Number of tokens dropped from the cache, 0 if nothing changed.
        """
        gap = context_shift.find_gap(self.cached.ids, ids, MIN_SHIFTED_TOKENS)
        if gap is None or not self.memory.can_shift(*gap, self.length):
            return 0
        if any(part_start(self.cached.ids, n) < n for n in (gap[0], sum(gap))):
            return 0
        self.shift(*gap)
        return gap[1]

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Drop all tokens fed inside the ``with`` block when it ends, and restore the next logits.

        Tokens removed inside by ``truncate`` are not restored.
        """
        length = self.length
        logits = self._logits
        self.memory.save_end(length)
        watch = self.cached.watch()
        with self.cached.temporary_tokens():
            try:
                yield
            finally:
                n_unchanged = min(length, watch.lowest_cut())
                self.cached.unwatch(watch)
                if self.truncate(n_unchanged) == length:
                    self._logits = logits
                self.memory.drop_saved_end()

    # ---- for the model, saved states and measurements

    def adopt(self, ids: Sequence[int], are_moved: bool = False) -> None:
        """Append tokens whose keys and values were written to the cache directly, as by a restored
        state.

        Args:
            are_moved: whether they were computed after other tokens.

        Raises:
            EngineError: an id is out of range.
            ContextFullError: more tokens than fit into the context.
        """
        checked = self.check_ids(ids, has_pictures=True)
        if are_moved:
            self.cached.append_moved(checked)
        else:
            self.cached.append(checked)
        self._logits = None
        self.memory.commit(self.length)

    def append_block(self, ids: list[int], compute: Callable[[int], bool]) -> None:
        """Append a block that the caller computes, for measurements.

        Args:
            compute: called with the position of the first token; returns False if cancelled.

        Raises:
            Cancelled: ``cancel`` was called.
        """
        pos = self.length
        self.memory.reserve(pos + len(ids))
        self.pipeline.position_offset = self.cached.position_offset
        try:
            self.forward.check(compute(pos))
        except Cancelled:
            self._rewind(pos)
            raise
        self._append(ids, None)

    def reset(self) -> None:
        """Drop all tokens and write the plans again, after a change of the adapters."""
        self.truncate(0)
        is_timed = self.profiler.is_running
        self.profiler.discard()
        self.pipeline.rewrite_plans()
        if is_timed:
            self.profiler.start()

    def cancel(self) -> None:
        """End the running call: ``feed`` and ``prefill`` raise ``Cancelled``, ``generate`` ends.

        Any thread may call it.
        """
        self.forward.cancel()

    def close(self) -> None:
        """Release the cache; the session cannot be used afterwards. Closing twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        self.truncate(0)
        self.model.forget(self)
        if self.batch is not None:
            self.batch.leave(self.pipeline)
        del self.forward.pipeline, self.profiler

    # ---- blocks

    def _feed(
        self,
        ids: Sequence[int],
        *,
        all_logits: bool = False,
        on_progress: PrefillProgress | None = None,
        checkpoint_positions: Collection[int] = (),
        is_prompt: bool = False,
    ) -> Logits:
        """Compute tokens and rows of pictures block by block.

        Returns:
            Logits as ``feed`` returns them; empty if the last token is a row of a picture.
        """
        checked = self.check_ids(ids, has_pictures=True)
        start = self.length
        end = start + len(checked)
        pictures = _pictures_in(checked, start)
        rows: list[Logits] = []
        try:
            while (pos := self.length) < end:
                if is_prompt and self.batch is not None:
                    pos = self._copy_from_peers(self.batch, checked[pos - start :])
                while pictures and pictures[0].end <= pos:
                    pictures.pop(0)
                if pictures and pictures[0].first <= pos:
                    block_end = self._feed_rows(pictures[0], checked, pos, start)
                else:
                    text_end = pictures[0].first if pictures else end
                    block_end = self._block_end(pos, text_end, checkpoint_positions)
                    rows += self._feed_block(
                        checked[pos - start : block_end - start],
                        all_logits,
                        block_end == end,
                        is_prompt,
                    )
                if block_end < end and block_end in checkpoint_positions:
                    self.memory.make_checkpoint()
                if on_progress is not None:
                    on_progress(block_end - start, len(checked))
        except BrokenModelError:
            self.truncate(start)
            raise
        if not rows:
            return np.empty(0, np.float32)
        return np.stack(rows) if all_logits else rows[-1]

    def _feed_rows(self, span: PictureSpan, ids: list[int], pos: int, start: int) -> int:
        """Compute one block of rows of a picture; returns the index after it.

        Args:
            span: the part, with its indices in the cache.
            ids: ids of all tokens to append, from index ``start`` on.
            pos: index of the first row.
        """
        part_ids = ids[span.first - start : span.end - start]
        with self.forward.use_threads():
            part = self.model.pictures.part(part_ids)
        size = self.pipeline.block_size_at(pos)
        if self.forward.has_waiting_peers:
            size = min(size, SHORT_BLOCK)
        if part.visibility != CAUSAL:
            size = len(part.rows)
            if size > self.pipeline.max_block_tokens:
                raise EngineError(
                    f"this model reads pictures of at most {self.pipeline.max_block_tokens:,} "
                    f"tokens, and this one has {size:,} (choose a lower detail of pictures)"
                )
        end = min(pos + size, span.end)
        rows = slice(pos - span.first, end - span.first)
        first_position = span.first + self.cached.position_offset
        block = part.block(rows, first_position + grid_positions(span)[rows])

        self.memory.reserve(end)
        try:
            self.forward.compute_rows(block, pos)
        except Cancelled:
            self._rewind(pos)
            raise
        self._append(part_ids[rows], None)
        if end == span.end and end - self.memory.checkpoint_before(end) >= MIN_CHECKPOINT_GAP:
            self.memory.make_checkpoint()  # another question about the picture may follow
        return end

    def _copy_from_peers(self, batch: Batch, ids: list[int]) -> int:
        """Copy the keys and values of the next tokens from a peer that has them; returns the new
        length."""
        all_ids = [*self.cached.ids, *ids]
        n = part_start(all_ids, batch.copy_shared(self.pipeline, all_ids))
        self.cached.append(all_ids[self.length : n])
        return self.length

    def _block_end(self, pos: int, end: int, checkpoint_positions: Collection[int]) -> int:
        """Return the end of the block at a position: the next checkpoint, or as far as a block
        goes."""
        if end - pos == 1:
            return end
        size = self.pipeline.block_size_at(pos)
        if self.forward.has_waiting_peers:
            size = min(size, SHORT_BLOCK)
        checkpoints = (
            position
            for position in checkpoint_positions
            if pos < position < end
            and position - self.memory.checkpoint_before(position) >= MIN_CHECKPOINT_GAP
        )
        return min(pos + size, min(checkpoints, default=end))

    def _feed_block(
        self, ids: list[int], all_logits: bool, is_end: bool, is_prompt: bool
    ) -> list[Logits]:
        """Compute one block; the length grows only when all of it is done."""
        pos = self.length
        self.memory.reserve(pos + len(ids))
        self.pipeline.position_offset = self.cached.position_offset
        try:
            rows = self.forward.compute_block(
                ids, pos, every=all_logits, is_end=is_end, is_prompt=is_prompt
            )
        except (Cancelled, BrokenModelError):
            self._rewind(pos)  # some layers may have more tokens than others
            raise
        self._append(ids, rows[-1] if rows else None)
        return rows

    def _verify(self, ids: list[int]) -> list[Logits]:
        """Compute the logits of a few tokens without appending these."""
        pos = self.length
        self.memory.reserve_trial(pos, pos + len(ids))
        self.pipeline.position_offset = self.cached.position_offset
        try:
            return self.forward.verify(ids, pos)
        except (Cancelled, BrokenModelError):
            self._rewind(pos)
            raise

    def _append(self, ids: list[int], logits: Logits | None) -> None:
        """Append computed tokens. Without logits a reply cannot start here."""
        self.cached.append(ids)
        self._logits = logits
        self._last_was_decoded = False
        self.memory.commit(self.length)

    def check_ids(self, ids: Sequence[int], has_pictures: bool = False) -> list[int]:
        """Return token ids as integers; raises ``EngineError`` if they cannot be appended.

        Args:
            has_pictures: whether ids of rows of pictures are allowed.
        """
        checked = [int(token) for token in ids]
        if not checked:
            raise EngineError("no tokens to feed")
        lowest = LOWEST_ID if has_pictures else 0
        if min(checked) < lowest or max(checked) >= self.model.config.vocab_size:
            raise EngineError(f"token ids must be 0 to {self.model.config.vocab_size - 1}")
        if self.length + len(checked) > self.n_ctx:
            raise _context_full(self.length + len(checked), self.n_ctx)
        return checked


def _context_full(n_tokens: int, n_ctx: int) -> ContextFullError:
    return ContextFullError(
        f"{n_tokens:,} tokens do not fit into the context of {n_ctx:,} (start again, "
        f"or open a larger context)"
    )


def _shared_prefix(cached: Sequence[int], ids: Sequence[int]) -> int:
    """Return the number of tokens that a prompt shares with a cache, without its last. A part of a
    picture is shared as a whole."""
    n = max(0, min(common_prefix(cached, ids), len(ids) - 1))
    return part_start(ids, n)


def _usable_prefix(session: Session, ids: Sequence[int]) -> int:
    """Return the number of tokens at the beginning of a prompt that a session has in its cache."""
    n = _shared_prefix(session.cached.ids, ids)
    if session.min_moved_tokens:
        return n
    return min(n, session.cached.n_exact)


def _spans_to_move(session: Session, ids: Sequence[int]) -> list[MovedSpan]:
    """Return the spans of the cache that ``prefill`` moves for a prompt."""
    cached = session.cached
    if not session.min_moved_tokens or not session.memory.can_move_spans:
        return []
    if cached.pictures or min(ids) < 0:
        return []
    n_shared = _shared_prefix(cached.ids, ids)
    return find_spans(cached.ids, ids, n_shared, session.min_moved_tokens)


def _feed_around(session: Session, ids: Sequence[int], spans: list[MovedSpan]) -> None:
    """Move spans to where a prompt has them, and compute the tokens before and between them.

    After ``Cancelled`` the cache has the spans without the tokens between them, for the next
    prompt.
    """
    session.memory.move_spans(spans)
    remaining = list(spans)
    try:
        for span in spans:
            if session.length < span.to:
                session._feed(ids[session.length : span.to])
            session.adopt(ids[span.to : span.end], are_moved=True)
            remaining.remove(span)
    except Cancelled:
        session.memory.move_spans(joined_spans(remaining, session.length))
        for span in remaining:
            session.adopt(ids[span.to : span.end], are_moved=True)
        raise


def _pictures_in(ids: list[int], start: int) -> list[PictureSpan]:
    """Return the parts of pictures in tokens to append from index ``start`` on, with their indices
    in the cache."""
    if min(ids) >= 0:
        return []
    spans = list(spans_in(ids))
    if sum(token < 0 for token in ids) != sum(span.end - span.first for span in spans):
        raise EngineError("a picture is not complete")
    return [span._replace(first=start + span.first) for span in spans]

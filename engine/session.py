"""One conversation's state in the engine: which tokens the cache holds, and how it grows, shrinks and is continued."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from engine.cache import context_shift
from engine.cache.cached_tokens import CachedTokens, common_prefix
from engine.errors import BrokenModelError, Cancelled, ContextFullError, EngineError
from engine.plan.buffers import FEW_COLUMNS
from engine.plan.profile import PhaseTime, Profile
from engine.sampling.sampler import Sampler, Sampling
from engine.sampling.stopping import StopStrings

if TYPE_CHECKING:
    from engine.cache.layer_memory import LayerMemory
    from engine.cache.rotation import Rotation
    from engine.config import ModelConfig, Rope
    from engine.pipeline import Pipeline
    from engine.plan.crew import Crew
    from engine.tokenizer import Tokenizer
    from engine.weights.weights import Weights

Logits = np.ndarray[Any, np.dtype[np.float32]]
PrefillProgress = Callable[[int, int], None]

FEW_UP_TO = 4
"""So few tokens are computed faster with decode's kernels than as a prefill block (PERFORMANCE.md)."""
FEWEST_SHIFTED = 16
"""Fewer tokens are computed anew rather than moved."""
SWITCH_INTERVAL_S = 5e-4
"""While the engine runs, a thread that wants the GIL for a moment need not wait 5 ms for it."""


@dataclass(frozen=True)
class Prefilled:
    """What a prefill did: tokens kept in the cache, tokens computed, and how long that took."""

    reused: int
    fed: int
    seconds: float


@dataclass(frozen=True)
class Generated:
    """One token of a reply; ``text`` may be empty, and never ends inside a character."""

    token_id: int
    text: str


class Host(Protocol):
    """The opened model, as far as its sessions know it."""

    config: ModelConfig
    tokenizer: Tokenizer
    threads: int
    prefill_threads: int

    @property
    def crew(self) -> Crew:
        """The threads that walk the plans."""

    @property
    def shown_name(self) -> str:
        """The file's name, for messages."""

    @property
    def fingerprint(self) -> str:
        """What tells this model's saved states from another's."""

    def forget(self, session: Session) -> None:
        """The session is closed."""

    def refuse_changed_file(self) -> None:
        """Raise ``ModelChangedError`` where the file is not what was opened."""


class Session:
    """Tokens in a cache, fed and continued. One thread at a time may use it; ``cancel`` is for all others.

    Attributes:
        n_ctx: tokens the context holds.
        finish_reason: of the last ``generate``: ``"stop"``, ``"length"``, ``"context"`` or ``"cancelled"``.
        model: what computes.
        cached: the tokens in the cache, for who saves them.
        origin: what who saves them left here to know them by.
    """

    def __init__(self, model: Host, pipeline: Pipeline, n_ctx: int) -> None:
        self.model = model
        self._pipeline = pipeline
        self.n_ctx = n_ctx
        self.finish_reason = ""
        self.origin: object = None
        self.cached = CachedTokens()
        self._tokens = self.cached.ids
        self._is_closed = False
        self._logits: Logits | None = None
        self._cancelled = threading.Event()
        self._profile: Profile | None = None

    @property
    def tokens(self) -> list[int]:
        """The tokens whose keys and values the cache holds."""
        return list(self._tokens)

    @property
    def length(self) -> int:
        """How many tokens the cache holds."""
        return len(self._tokens)

    @property
    def kv_type(self) -> str:
        """How the cache keeps keys and values: a key of ``engine.KV_TYPES``."""
        return self._pipeline.kv_type.name

    @property
    def kv_bytes(self) -> int:
        """Memory of everything that layers remember."""
        return self.memory.n_bytes

    @property
    def memory(self) -> LayerMemory:
        """What the layers remember of the tokens: keys and values."""
        return self._pipeline.memory

    @property
    def rotations(self) -> Mapping[Rope, Rotation]:
        """How the keys of layers with some rope are turned by their positions."""
        return self._pipeline.rotations

    def adopt(self, ids: Sequence[int]) -> None:
        """Count tokens whose keys and values somebody has put into the empty cache.

        Raises:
            EngineError: the session holds tokens, or ids are out of range.
            ContextFullError: they do not fit.
        """
        if self._tokens:
            raise EngineError("only an empty session takes over saved tokens")
        self._tokens += self._check_ids(ids)
        self.memory.reach(self.length)

    def kv_resident_bytes(self) -> int | None:
        """How much of the cache lies in memory: what was written, in whole pages. None where the system does not say.

        Any thread may ask.
        """
        return self.memory.resident_bytes()

    def feed(self, ids: Sequence[int], every: bool = False, on_progress: PrefillProgress | None = None) -> Logits:
        """Append tokens.

        Args:
            ids: token ids, at least one.
            every: return the logits of every position, not only of the last.
            on_progress: called with (tokens done, tokens in all) after every block.

        Returns:
            (vocab_size,) float32, or (n, vocab_size).

        Raises:
            ContextFullError: they do not fit; nothing was computed.
            Cancelled: the blocks finished before are kept.
            BrokenModelError: NaN or infinity; the length is as it was.
            ModelChangedError: the model file is not what it was.
        """
        self._begin()
        return self._feed(ids, every, on_progress)

    def verify(self, ids: Sequence[int]) -> Logits:
        """Append a few tokens that something proposed, as single steps would, and return all their logits.

        Weights are read once for all of them, the output matrix too. What turns out wrong is taken back by
        ``truncate``.

        Args:
            ids: one to ``engine.plan.buffers.FEW_COLUMNS`` token ids.

        Returns:
            (n, vocab_size) float32, to the bit what feeding one after the other gives. Raises what ``feed`` raises.
        """
        self._begin()
        checked = self._check_ids(ids)
        if len(checked) > FEW_COLUMNS:
            raise EngineError(f"at most {FEW_COLUMNS} tokens are verified at once")
        rows = self._verified(checked, self.model.threads)
        self._grow(checked, rows[-1])
        return np.stack(rows)

    def prefill(self, ids: Sequence[int], on_progress: PrefillProgress | None = None) -> Prefilled:
        """Make the cache hold exactly ``ids``, computing only what lies behind the longest common prefix.

        Where layers cannot go back to its end, they go back further, and more is computed. The last token is always
        computed, for its logits. Raises what ``feed`` raises.
        """
        self._begin()
        if len(ids) > self.n_ctx:
            raise self._full(len(ids))
        start = time.monotonic()
        reused = self.truncate(max(0, min(common_prefix(self._tokens, ids), len(ids) - 1)))
        self._feed(ids[reused:], False, on_progress)
        return Prefilled(reused, len(ids) - reused, time.monotonic() - start)

    def generate(
        self,
        sampling: Sampling,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        after: Sequence[int] = (),
        spelled: Collection[int] = (),
    ) -> Iterator[Generated]:
        """Continue from the last token fed, until an end token, a stop string, a limit or ``cancel``.

        Args:
            sampling: how tokens are chosen.
            max_tokens: the most to generate now; None for no limit but the context.
            stop: texts that end the reply.
            after: ids of a reply's beginning that were fed last: text goes on behind theirs, so that a character or
                a stop string that they began is completed.
            spelled: control tokens that are text, as the vocabulary spells them; the others have none.

        Yields:
            Every token but the end token; text that may begin a stop string comes when that is decided. Pieces
            without a token of their own carry the token before them.

        Raises:
            BrokenModelError: the model computes NaN or infinity.
            EngineError: nothing was fed yet.
        """
        if self._logits is None:
            raise EngineError("nothing to continue: feed the prompt first")
        self._begin()
        self.finish_reason = ""
        with _short_switch_interval():
            for generated in self._continue(sampling, max_tokens, stop, after, spelled):
                if self._pipeline.profile and self._profile is not None:
                    self._profile.leave()
                    yield generated
                    self._profile.enter()
                else:
                    yield generated

    def _continue(
        self,
        sampling: Sampling,
        max_tokens: int | None,
        stop: Sequence[str],
        after: Sequence[int],
        spelled: Collection[int],
    ) -> Iterator[Generated]:
        sampler = Sampler(sampling, self.model.config.vocab_size)
        stream, stops = self.model.tokenizer.stream(spelled), StopStrings(stop)
        stops.know("".join(stream.push(earlier) for earlier in after))
        token, n = -1, 0
        while not self.finish_reason:
            if max_tokens is not None and n >= max_tokens:
                self.finish_reason = "length"
                break
            logits = self._logits
            assert logits is not None
            chosen = sampler.choose(logits, self._tokens)
            if chosen in self.model.tokenizer.end_ids:
                self.finish_reason = "stop"
                break
            token, n = chosen, n + 1
            yield Generated(token, stops.push(stream.push(token)))
            if stops.hit:
                self.finish_reason = "stop"
            elif self.length >= self.n_ctx:
                self.finish_reason = "context"
            elif max_tokens is None or n < max_tokens:
                self._advance(token)
        rest = "" if stops.hit else stops.push(stream.flush()) + stops.flush()
        if rest:
            yield Generated(token, rest)

    def _advance(self, token: int) -> None:
        try:
            self._feed([token], False, None)
        except Cancelled:
            self.finish_reason = "cancelled"

    def truncate(self, n: int) -> int:
        """Forget every token behind the first n, and more where layers cannot go back to n; returns how many are left.

        More than there are changes nothing.

        Raises:
            EngineError: n is negative.
        """
        if n < 0:
            raise EngineError(f"cannot keep {n} tokens")
        if n < len(self._tokens):
            self._rewind(n)
        return len(self._tokens)

    def _rewind(self, n: int) -> None:
        """Have the layers go back to n tokens; what they cannot keep is forgotten."""
        if n < len(self._tokens):
            self.cached.cut(n)
            self._logits = None
        left = self.memory.rewind(n)
        if left < n:
            self.cached.cut(left)
            self._logits = None

    def shift(self, n_keep: int, n_drop: int) -> None:
        """Forget tokens n_keep to n_keep + n_drop; those behind move down, their keys turned to their new positions.

        What moved still knows of what was forgotten: see PERFORMANCE.md on when to compute it anew instead.

        Raises:
            EngineError: there are not that many tokens, or what the layers remember cannot be moved.
        """
        length = self.length
        if n_keep < 0 or n_drop < 1 or n_keep + n_drop > length:
            raise EngineError(f"cannot forget {n_drop} tokens behind {n_keep}: there are {length}")
        rest = self._tokens[n_keep + n_drop :]
        if not rest:
            self.truncate(n_keep)
            return
        if not self.memory.can_shift:
            raise EngineError("this model's layers cannot forget tokens from the midst of a conversation")
        self.cached.cut(n_keep)
        self._logits = None
        self.memory.shift(n_keep, n_drop, length)
        self._tokens += rest

    def shift_towards(self, ids: Sequence[int]) -> int:
        """Shift if the cache holds the beginning of ``ids`` but for a run of tokens that were dropped from its midst.

        Call it before ``prefill(ids)``, which then computes only what is new. Returns how many tokens were dropped.
        """
        gap = context_shift.find_gap(self._tokens, ids, FEWEST_SHIFTED) if self.memory.can_shift else None
        if gap is None:
            return 0
        self.shift(*gap)
        return gap[1]

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Forget on leaving whatever was fed inside: the session stands as before, and would continue the same way.

        Positions behind the length mean nothing, so that trying something costs the conversation nothing. What is
        forgotten inside, by ``truncate``, stays forgotten.
        """
        length, logits = self.length, self._logits
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

    def stretch(self, n: int) -> None:
        """Make the cache hold n tokens by repeating those it holds, without computing them: a context to measure in.

        Multiples of eight only; what would be written behind it means nothing. Use it inside ``forgetting``.
        """
        length = self.length
        if n > self.n_ctx:
            raise self._full(n)
        if n > length:
            self.memory.repeat(length, n)
            self._tokens += [self._tokens[i % length] for i in range(length, n)]
            self._logits = None

    def use_weights(self, weights: Weights, keep_others: bool) -> None:
        """Read the same weights at another place from the next step on; called by the model."""
        self._pipeline.use_weights(weights, keep_others)

    def cancel(self) -> None:
        """End what runs: ``feed`` and ``prefill`` raise ``Cancelled``, ``generate`` finishes. For any thread."""
        self._cancelled.set()
        self.model.crew.cancel()

    def start_profile(self) -> None:
        """Time every operation from now on, from zero."""
        if self._profile is None:
            self._profile = Profile({name: plan.operations for name, plan in self._pipeline.plans.items()})
        self._profile.reset()
        self._pipeline.profile = self._profile.tables

    def read_profile(self) -> dict[str, list[PhaseTime]]:
        """The phases so far, as ``end_profile`` returns them; the timing goes on."""
        return self._profile.phases() if self._profile is not None and self._pipeline.profile else {}

    def end_profile(self) -> dict[str, list[PhaseTime]]:
        """Stop timing; returns the phases of ``"decode"``, ``"few"`` and ``"block"`` (prefill), and ``"head"``."""
        phases, self._pipeline.profile = self.read_profile(), {}
        return phases

    def close(self) -> None:
        """Let go of the cache; the session cannot be used any more. Closing twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        self.truncate(0)
        self.model.forget(self)
        del self._pipeline

    def _begin(self) -> None:
        self._cancelled.clear()
        self.model.crew.rearm()
        self.model.refuse_changed_file()

    def _feed(self, ids: Sequence[int], every: bool, on_progress: PrefillProgress | None) -> Logits:
        checked = self._check_ids(ids)
        length = len(self._tokens)
        rows: list[Logits] = []
        try:
            done = 0
            while done < len(checked):
                columns = self._pipeline.columns_at(len(self._tokens))
                rows += self._feed_block(checked[done : done + columns], every)
                done = len(self._tokens) - length
                if on_progress is not None:
                    on_progress(done, len(checked))
        except BrokenModelError:
            self.truncate(length)
            raise
        return np.stack(rows) if every else rows[-1]

    def _feed_block(self, ids: list[int], every: bool) -> list[Logits]:
        """Compute one block; the length grows only when all of it is done."""
        pos = len(self._tokens)
        is_few = len(ids) <= FEW_UP_TO
        n_threads = self.model.threads if is_few else self.model.prefill_threads
        if len(ids) == 1:
            self._run(self._pipeline.decode(ids[0], pos, n_threads))
            rows = [self._finite_logits()]
        elif is_few and every:
            rows = self._verified(ids, n_threads)
        else:
            compute = self._pipeline.few if is_few else self._pipeline.block
            self._run(compute(ids, pos, n_threads))
            rows = []
            for column in range(0 if every else len(ids) - 1, len(ids)):
                self._run(self._pipeline.head(column, n_threads))
                rows.append(self._finite_logits())
        self._grow(ids, rows[-1])
        return rows

    def _verified(self, ids: list[int], n_threads: int) -> list[Logits]:
        """Compute a few tokens and all their logits in one walk."""
        self._run(self._pipeline.verify(ids, len(self._tokens), n_threads))
        return [self._finite_logits(row) for row in self._pipeline.every_logits[: len(ids)]]

    def _grow(self, ids: list[int], logits: Logits) -> None:
        """Count tokens that were computed behind the others."""
        self._tokens += ids
        self._logits = logits
        self.memory.reach(len(self._tokens))

    def _run(self, finished: bool) -> None:
        if not finished or self._cancelled.is_set():
            self._rewind(len(self._tokens))  # some layers may be further than others
            raise Cancelled("stopped")

    def _finite_logits(self, computed: Logits | None = None) -> Logits:
        from engine.sampling import sampling_kernels as compiled

        computed = self._pipeline.logits if computed is None else computed
        logits: Logits = np.empty_like(computed)
        if not compiled.copy_logits(computed, logits):
            self._rewind(len(self._tokens))
            raise BrokenModelError(
                f"{self.model.shown_name}: the model computed NaN or infinity: its weights are damaged "
                "(download it again)"
            )
        return logits

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
            f"{wanted:,} tokens do not fit into the context of {self.n_ctx:,} (start anew, or open a larger context)"
        )


@contextmanager
def _short_switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)

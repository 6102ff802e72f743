"""Measurements of a sweep, taken on an open session after its conversation.

Tokens fed here are dropped afterwards, so the conversation does not change. Decode is measured
token by token, as a reply is written; prefill as one block, as a prompt is read. The weights move
to another place under the session, which has no other effect. KV types need caches of their own:
each gets a session, which is filled in the same way and closed afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from engine.cache.kv_cache import memory_needs
from engine.cache.kv_types import KV_TYPES
from engine.cache.picture_ids import text_ids
from engine.errors import MemoryPlanError
from engine.forward_pass import SMALL_BATCH_LIMIT
from engine.machine import host
from engine.machine.memory import gives_huge_pages, shown_bytes
from engine.model import Model
from engine.pipeline import BLOCK_BYTES
from engine.plan.compilation import Progress
from engine.session import Session
from engine.tuning.fill_cache import fill_cache
from engine.tuning.report import DECODE, KV, PREFILL, WEIGHTS, ReportPreparation
from engine.weights.modes import HUGE, MMAP, RESERVE_BYTES, WEIGHT_MODES

DECODE_SAMPLE_S = 0.4
PREFILL_SAMPLE_S = 0.8
"""Target durations of a sample in seconds: long compared with a time slice, short for a waiting
user."""
MIN_DECODE = 2
MAX_DECODE = 64
MIN_PREFILL = 16
MAX_PREFILL = 256
FIRST_PREFILL = 16
"""Tokens of the first prefill, whose time determines the size of samples."""
MAX_FILLED = 4096
"""Limit on the tokens in compared caches. More would show larger differences, but take more
memory."""
MIN_FILLED = 256
"""Minimum of tokens in compared caches. In shorter contexts the KV type hardly matters."""
COMPUTED_TOKENS = 64
"""Number of tokens computed to fill a cache; the others are copies, since computing thousands may
take minutes."""
SAMPLE_TOKENS = 128
HUGE_SHARE = 0.9
"""Share of a copy in huge pages above which the report does not mention missing ones."""


class SessionTrials:
    """Takes samples on a session.

    Args:
        model: model whose thread counts and pinning change during measurements; ``restore`` resets
            them.
        session: session of the model; its tokens are the context of the measurements.
        clock: monotonic seconds of the finest resolution.
    """

    def __init__(
        self, model: Model, session: Session, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._model = model
        self._session = session
        self._clock = clock
        self.threads = {DECODE: model.threads, PREFILL: model.prefill_threads}
        self.pinned = model.pinned
        self.n_context = session.length
        self.can_pin = model.can_pin
        self._ids = text_ids(session.tokens) or [0]
        self.sizes = {DECODE: 0, PREFILL: 0}

    @property
    def _n_free(self) -> int:
        return self._session.n_ctx - self.n_context

    @property
    def notes(self) -> tuple[str, ...]:
        """Measurements that do not fit into the context, one line each."""
        free_text = f"the conversation leaves {self._n_free} of {self._session.n_ctx} tokens free"
        if self._n_free <= MIN_DECODE:
            return (f"nothing can be measured: {free_text}",)
        if self._n_free < FIRST_PREFILL:
            return (f"reading a prompt is not measured: {free_text}",)
        return ()

    def prepare(self) -> None:
        """Run decode and prefill once and choose the number of tokens of a sample by their time.

        Raises:
            Cancelled: ``cancel`` was called.
        """
        if self._n_free > MIN_DECODE:
            self._decode(1)
            seconds = self._decode(1)
            self.sizes[DECODE] = sample_size(
                1, seconds, DECODE_SAMPLE_S, MIN_DECODE, MAX_DECODE, self._n_free - 1
            )
        if self._n_free >= FIRST_PREFILL:
            n = FIRST_PREFILL
            seconds = self._prefill(n)
            self.sizes[PREFILL] = sample_size(
                n, seconds, PREFILL_SAMPLE_S, MIN_PREFILL, MAX_PREFILL, self._n_free
            )

    def n_tokens(self, phase: str) -> int:
        """Return the number of tokens of one sample."""
        return self.sizes[phase]

    def measure(self, phase: str, n_threads: int, pinned: bool) -> float:
        """Take one sample; returns tokens per second. Raises Cancelled: ``cancel`` was called."""
        counts = {**self.threads, phase: n_threads}
        self._model.set_pinned(pinned)
        self._model.set_threads(counts[DECODE], counts[PREFILL])
        n = self.sizes[phase]
        measure = self._decode if phase == DECODE else self._prefill
        return n / max(1e-9, measure(n))

    def options(self, part: str) -> OptionTrials:
        """Return the trials of the memory options of one part."""
        if part == WEIGHTS:
            return WeightTrials(self._model, self)
        return KVTrials(self._model, self._session, self._clock)

    def cancel(self) -> None:
        """Make the running sample raise ``Cancelled``. Any thread may call it."""
        self._session.cancel()

    def restore(self) -> None:
        """Restore the thread counts and pinning from before."""
        self._model.set_threads(self.threads[DECODE], self.threads[PREFILL])
        self._model.set_pinned(self.pinned)

    def _decode(self, n_tokens: int) -> float:
        """Return the seconds for ``n_tokens`` decode steps. An uncounted step first wakes the
        threads."""
        with self._session.restoring():
            self._session.feed([self._token(0)])
            start = self._clock()
            for i in range(1, n_tokens + 1):
                self._session.feed([self._token(i)])
            return self._clock() - start

    def _prefill(self, n_tokens: int) -> float:
        """Return the seconds for one block of ``n_tokens``."""
        assert n_tokens > SMALL_BATCH_LIMIT
        with self._session.restoring():
            start = self._clock()
            self._session.feed([self._token(i) for i in range(n_tokens)])
            return self._clock() - start

    def _token(self, i: int) -> int:
        return self._ids[i % len(self._ids)]


def sample_size(n: int, seconds: float, target_s: float, low: int, high: int, limit: int) -> int:
    """Return the number of tokens, ``low`` to ``high``, that take about ``target_s`` if ``n`` took
    ``seconds``; at most ``limit``."""
    size = int(n * target_s / seconds) if seconds > 0 else high
    size = min(max(low, min(high, size)), limit)
    if size >= 16:
        return size // 8 * 8
    return size


class WeightTrials:
    """Weights in the map and in huge pages, measured in the conversation's context.

    Args:
        model: model whose weights mode changes during the measurement.
        samples: samples on the conversation's session.
    """

    part = WEIGHTS
    options: Sequence[str] = WEIGHT_MODES

    def __init__(self, model: Model, samples: SessionTrials) -> None:
        self._model = model
        self._samples = samples
        self.present = model.weights_mode
        self._memory = model.room_for_both_modes()
        self._huge_bytes = 0
        self.left_out = ""
        if not gives_huge_pages():
            self.left_out = (
                "huge pages are not tried: this system gives none (`jalopy doctor` may know why)"
            )
        elif not self._memory.is_enough:
            self.left_out = "huge pages are not tried: both at once do not fit into memory"
        if self.left_out:
            self.options = (self.present,)

    @property
    def n_context(self) -> int:
        """Number of tokens of the conversation."""
        return self._samples.n_context

    @property
    def estimate(self) -> str:
        """Memory needed to have both at once, one line."""
        memory = self._memory
        return (
            f"huge pages: a copy of {shown_bytes(memory.copy_bytes)} next to the file's own pages, "
            f"{shown_bytes(memory.needed_bytes)} with a reserve; "
            f"{shown_bytes(memory.available_bytes)} are available"
        )

    def own_bytes(self, option: str) -> int:
        """Return the bytes of the copy; the file's pages belong to the system."""
        if option == HUGE:
            return self._memory.copy_bytes
        return 0

    def open(self, report_preparation: ReportPreparation) -> None:
        """Copy the weights and load the file's pages, as far as necessary.

        Raises:
            MemoryPlanError: the copy does not fit into memory, or the conversation fills the
                context.
        """
        if not any(self.n_tokens(phase) for phase in (DECODE, PREFILL)):
            raise MemoryPlanError("the conversation leaves no room to measure in")

        def copying(progress: Progress) -> None:
            report_preparation(
                f"copying the weights into huge pages: {shown_bytes(progress.done)} of "
                f"{shown_bytes(progress.total)}"
            )

        self._model.use_weights(HUGE, copying, keep_copy=True)
        self._huge_bytes = self._model.huge_bytes
        report_preparation("reading the file's pages")
        self._model.use_weights(MMAP, keep_copy=True)
        self._model.bring_weights_in()

    def n_tokens(self, phase: str) -> int:
        """Return the number of tokens of one sample."""
        return self._samples.n_tokens(phase)

    def measure(self, phase: str, option: str, n_threads: int, pinned: bool) -> float:
        """Take one sample; returns tokens per second."""
        self._model.use_weights(option, keep_copy=True)
        return self._samples.measure(phase, n_threads, pinned)

    def remark(self) -> str:
        """Return a sentence on the share of the copy in huge pages; empty if it is nearly all."""
        share = self._huge_bytes / max(1, self._memory.copy_bytes)
        if share >= HUGE_SHARE:
            return ""
        return (
            f"The system gave huge pages for only {100 * share:.0f} % of the copy (`jalopy "
            f"doctor` may know why)."
        )

    def close(self) -> None:
        """Restore the earlier mode; a copy made for the measurement is dropped."""
        self._model.use_weights(self.present)


class KVTrials:
    """The present KV type and the exact ones, each in a session with the same filled context.

    Less exact types may be faster, but speed is no reason to choose them.

    Args:
        model: model of the sessions.
        session: the conversation's session, for its KV type and context; it does not change.
        clock: monotonic seconds of the finest resolution.
    """

    part = KV

    def __init__(
        self, model: Model, session: Session, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._model = model
        self._clock = clock
        self.present = session.kv_type
        self._n_ctx = session.n_ctx
        self._needs = {
            name: memory_needs(model.config, KV_TYPES[name]) for name in self._possible()
        }
        weights_bytes = model.weights_bytes if model.weights_mode == MMAP else 0
        self._available_bytes = host.available_memory_bytes() - weights_bytes - RESERVE_BYTES
        self.n_context, self.options = self._choose()
        self._ids = text_ids(session.tokens)[:COMPUTED_TOKENS] or [0]
        self._samples: dict[str, SessionTrials] = {}
        self._sessions: list[Session] = []

    def _possible(self) -> list[str]:
        """Return the present type and the exact ones, smallest first."""
        names = [
            name for name, kv_type in KV_TYPES.items() if kv_type.is_exact or name == self.present
        ]
        return sorted(names, key=lambda name: KV_TYPES[name].bytes_per_element)

    def _choose(self) -> tuple[int, Sequence[str]]:
        """Return (number of tokens, KV types) that fit into memory. Types are dropped before the
        context is shortened."""
        filled = min(MAX_FILLED, self._n_ctx // 2) // 8 * 8
        small = [
            name
            for name in self._needs
            if name == self.present or KV_TYPES[name].bytes_per_element < 4
        ]
        while filled >= MIN_FILLED:
            for names in (list(self._needs), small):
                if len(names) > 1 and self._needed_bytes(filled, names) <= self._available_bytes:
                    return filled, names
            filled = filled // 2 // 8 * 8
        return max(8, filled), (self.present,)

    def _needed_bytes(self, filled: int, names: Sequence[str]) -> int:
        return sum(
            self._needs[name].bytes_for(filled + SAMPLE_TOKENS) + BLOCK_BYTES for name in names
        )

    @property
    def estimate(self) -> str:
        """Memory needed for the caches, one line."""
        names = self.options if len(self.options) > 1 else list(self._needs)
        needed = shown_bytes(self._needed_bytes(self.n_context, names))
        available = shown_bytes(max(0, self._available_bytes))
        return (
            f"KV types: caches of {self.n_context:,} tokens, {needed}; {available} are available "
            f"next to the weights"
        )

    @property
    def left_out(self) -> str:
        """KV types that are not tried, with the reason; empty if all are."""
        missing = [name for name in self._needs if name not in self.options]
        if len(self.options) > 1:
            if missing:
                return (
                    f"{', '.join(missing)} is not tried: it does not fit into memory next to the "
                    f"others"
                )
            return ""
        if self._n_ctx // 2 < MIN_FILLED:
            return (
                f"KV types are not tried: in a context of {self._n_ctx:,} tokens they hardly matter"
            )
        return "KV types are not tried: their caches do not fit into memory next to each other"

    def own_bytes(self, option: str) -> int:
        """Return the bytes of the cache for the conversation's whole context."""
        return self._needs[option].bytes_for(self._n_ctx)

    def open(self, report_preparation: ReportPreparation) -> None:
        """Open a session for each type, and fill it.

        Raises MemoryPlanError: a cache does not fit into memory.
        """
        for name in self.options:

            def compiling(progress: Progress, name: str = name) -> None:
                report_preparation(
                    f"compiling for {name}, once: {progress.done} of {progress.total} kernels"
                )

            def filling(done: int, total: int, name: str = name) -> None:
                report_preparation(
                    f"filling a cache of {name} with {self.n_context:,} tokens: {done} of "
                    f"{total} computed"
                )

            session = self._model.session(self.n_context + SAMPLE_TOKENS, name, compiling)
            self._sessions.append(session)
            filling(0, COMPUTED_TOKENS)
            session.prefill(
                [self._ids[i % len(self._ids)] for i in range(COMPUTED_TOKENS)], filling
            )
            fill_cache(session, self.n_context)
            self._samples[name] = SessionTrials(self._model, session, self._clock)
            self._samples[name].prepare()
        for samples in self._samples.values():
            samples.sizes = self._samples[self.present].sizes

    def n_tokens(self, phase: str) -> int:
        """Return the number of tokens of one sample, the same for all types."""
        if phase in (DECODE, PREFILL):
            return self._samples[self.present].n_tokens(phase)
        return 0

    def measure(self, phase: str, option: str, n_threads: int, pinned: bool) -> float:
        """Take one sample; returns tokens per second."""
        return self._samples[option].measure(phase, n_threads, pinned)

    def remark(self) -> str:
        """Return an empty text."""
        return ""

    def close(self) -> None:
        """Close the sessions and free their memory."""
        self._samples.clear()
        while self._sessions:
            self._sessions.pop().close()


OptionTrials = WeightTrials | KVTrials

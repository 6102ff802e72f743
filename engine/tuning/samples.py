"""Samples for a sweep, taken on an open session after its conversation, which is not changed.

Tokens fed here are dropped by setting the length back. Decode is measured token by token, as a reply is written;
prefill as one block, as a prompt is read.
"""

import time
from collections.abc import Callable

from engine.model import Model
from engine.session import FEW_UP_TO, Session
from engine.tuning.report import DECODE, PREFILL

DECODE_SAMPLE_S, PREFILL_SAMPLE_S = 0.4, 0.8
"""Target duration of a sample in seconds: long compared with a time slice, short for a waiting user."""
LEAST_DECODE, MOST_DECODE = 2, 64
LEAST_PREFILL, MOST_PREFILL = 16, 256
FIRST_PREFILL = 16
"""Tokens of the first prefill, whose time determines the size of samples."""


class SessionSamples:
    """Takes samples on a session.

    Args:
        model: its thread counts and pinning change during measurements; ``restore`` resets them.
        session: of that model; its tokens are the context of the measurements.
        clock: monotonic seconds of the finest resolution.
    """

    def __init__(self, model: Model, session: Session, clock: Callable[[], float] = time.perf_counter) -> None:
        self._model, self._session, self._clock = model, session, clock
        self.threads = {DECODE: model.threads, PREFILL: model.prefill_threads}
        self.pinned = model.pinned
        self.n_context = session.length
        self.bytes_per_token = model.bytes_per_token
        self.can_pin = model.can_pin
        self._ids = session.tokens or [0]
        self.sizes = {DECODE: 0, PREFILL: 0}

    @property
    def _room(self) -> int:
        return self._session.n_ctx - self.n_context

    @property
    def notes(self) -> tuple[str, ...]:
        """One line for each measurement that has no room in the context."""
        left = f"the conversation leaves {self._room} of {self._session.n_ctx} tokens free"
        if self._room <= LEAST_DECODE:
            return (f"nothing can be measured: {left}",)
        if self._room < FIRST_PREFILL:
            return (f"reading a prompt is not measured: {left}",)
        return ()

    def prepare(self) -> None:
        """Run each kind of step once and choose the number of tokens of a sample by its time.

        Raises:
            Cancelled: ``cancel`` was called.
        """
        if self._room > LEAST_DECODE:
            self._decode(1)
            seconds = self._decode(1)
            self.sizes[DECODE] = sample_size(1, seconds, DECODE_SAMPLE_S, LEAST_DECODE, MOST_DECODE, self._room - 1)
        if self._room >= FIRST_PREFILL:
            n = FIRST_PREFILL
            seconds = self._prefill(n)
            self.sizes[PREFILL] = sample_size(n, seconds, PREFILL_SAMPLE_S, LEAST_PREFILL, MOST_PREFILL, self._room)

    def n_tokens(self, phase: str) -> int:
        """Tokens of one sample."""
        return self.sizes[phase]

    def measure(self, phase: str, n_threads: int, pinned: bool) -> float:
        """Take one sample; returns tokens per second. Raises Cancelled: ``cancel`` was called."""
        counts = {**self.threads, phase: n_threads}
        self._model.set_pinned(pinned)
        self._model.set_threads(counts[DECODE], counts[PREFILL])
        n = self.sizes[phase]
        return n / max(1e-9, self._decode(n) if phase == DECODE else self._prefill(n))

    def cancel(self) -> None:
        """Make the running sample raise ``Cancelled``."""
        self._session.cancel()

    def restore(self) -> None:
        """Restore the thread counts and pinning from before."""
        self._model.set_threads(self.threads[DECODE], self.threads[PREFILL])
        self._model.set_pinned(self.pinned)

    def _decode(self, n_tokens: int) -> float:
        """Return the seconds for ``n_tokens`` single steps, after one uncounted step that wakes the threads."""
        with self._session.forgetting():
            self._session.feed([self._token(0)])
            start = self._clock()
            for i in range(1, n_tokens + 1):
                self._session.feed([self._token(i)])
            return self._clock() - start

    def _prefill(self, n_tokens: int) -> float:
        """Return the seconds for one block of ``n_tokens``."""
        assert n_tokens > FEW_UP_TO
        with self._session.forgetting():
            start = self._clock()
            self._session.feed([self._token(i) for i in range(n_tokens)])
            return self._clock() - start

    def _token(self, i: int) -> int:
        return self._ids[i % len(self._ids)]


def sample_size(n: int, seconds: float, wanted_s: float, least: int, most: int, room: int) -> int:
    """Return the tokens that take about ``wanted_s``, given that ``n`` took ``seconds``; at most ``room``."""
    wanted = int(n * wanted_s / seconds) if seconds > 0 else most
    size = min(max(least, min(most, wanted)), room)
    return size // 8 * 8 if size >= 16 else size

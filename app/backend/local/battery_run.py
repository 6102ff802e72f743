"""Measures the energy per token with several thread counts, in the engine thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from app.machine.sensors.energy import EnergyReading, joules_between
from app.machine.tuning.battery_life import EnergyRun, EnergySample
from engine.errors import Cancelled

if TYPE_CHECKING:
    from engine import Model, Session

SETTLE_S = 2.0
"""Seconds after a change of threads, until the power follows."""
SAMPLE_S = 6.0
"""Seconds of a sample: batteries tell their power every few seconds."""
PASSES = 2
_READ_EVERY_S = 0.5
_RESERVE = 8
"""Tokens of the context that stay free."""


class BatteryRun:
    """Writes tokens with each thread count and measures their energy, in both orders.

    The tokens follow the conversation and are dropped afterwards.

    Args:
        model: model whose thread counts change; they are restored at the end.
        session: session of the conversation.
        counts: thread counts in ascending order.
        read_energy: returns the energy used up to a time; None if it is not measured.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        model: Model,
        session: Session,
        counts: Sequence[int],
        read_energy: Callable[[float], EnergyReading | None],
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        self._session = session
        self._counts = tuple(counts)
        self._read_energy = read_energy
        self._clock = clock
        self._is_stopped = threading.Event()

    def cancel(self) -> None:
        """End the measurement; any thread may call this."""
        self._is_stopped.set()
        self._session.cancel()

    def run(self) -> Iterator[EnergyRun]:
        """Yield the results before the first sample and after each one."""
        model = self._model
        threads = model.threads, model.prefill_threads
        run = EnergyRun(self._counts, n_samples=PASSES * len(self._counts))
        reading = self._read_energy(self._clock())
        if reading is None:
            yield replace(run, is_over=True, trouble="this machine does not tell its power")
            return
        run = replace(run, scope=reading.scope.value)
        yield run
        try:
            with suppress(Cancelled):
                for number in range(PASSES):
                    for count in self._counts if number % 2 == 0 else self._counts[::-1]:
                        model.set_threads(count, threads[1])
                        sample = self._sample(count)
                        if self._is_stopped.is_set():
                            return
                        if sample is None:
                            trouble = "the power supply changed, or the context is full"
                            yield replace(run, is_over=True, trouble=trouble)
                            return
                        run = replace(run, samples=(*run.samples, sample))
                        yield run
                yield replace(run, is_over=True)
        finally:
            model.set_threads(*threads)

    def _sample(self, count: int) -> EnergySample | None:
        self._write(SETTLE_S)
        first = self._read_energy(self._clock())
        began_s = self._clock()
        n_tokens = self._write(SAMPLE_S)
        elapsed_s = self._clock() - began_s
        joules = joules_between(first, self._read_energy(self._clock()))
        if joules is None or joules <= 0 or not n_tokens or elapsed_s <= 0:
            return None
        return EnergySample(count, joules / n_tokens, n_tokens / elapsed_s)

    def _write(self, duration_s: float) -> int:
        """Write tokens for some seconds, and return their number. The meter is read meanwhile, as
        it sums up the power of batteries."""
        session = self._session
        ids = [token for token in session.tokens if token >= 0] or [0]
        n_written = 0
        end_s = self._clock() + duration_s
        while self._clock() < end_s and not self._is_stopped.is_set():
            n_free = session.n_ctx - session.length - _RESERVE
            if n_free < 1:
                break
            with session.restoring():
                n_fed = self._feed(ids, n_free, end_s)
            n_written += n_fed
        return n_written

    def _feed(self, ids: Sequence[int], n_most: int, end_s: float) -> int:
        read_s = self._clock()
        for n_fed in range(min(n_most, 64)):
            now_s = self._clock()
            if now_s >= end_s or self._is_stopped.is_set():
                return n_fed
            if now_s - read_s >= _READ_EVERY_S:
                self._read_energy(now_s)
                read_s = now_s
            self._session.feed([ids[n_fed % len(ids)]])
        return min(n_most, 64)

"""Trials whose rates and times are written down: a sweep over them computes nothing and takes no time."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import Cancelled

Rate = Callable[[str, int, bool, int], float]
"""Phase, threads, pinned, how many samples were taken before -> tokens per second."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class ScriptedTrials:
    def __init__(self, rate: Rate, sample_s: float = 0.5, sizes: dict[str, int] | None = None) -> None:
        self.clock, self._rate, self._sample_s = Clock(), rate, sample_s
        self.sizes = sizes or {"decode": 4, "prefill": 32}
        self.n_context, self.bytes_per_token, self.notes, self.can_pin = 840, 2 << 30, (), False
        self.taken: list[tuple[str, int, bool]] = []
        self.cancel_after: int | None = None
        self.is_cancelled = False
        self.n_restored = 0

    def prepare(self) -> None:
        self.clock.now_s += self._sample_s

    def n_tokens(self, phase: str) -> int:
        return self.sizes.get(phase, 0)

    def measure(self, phase: str, n_threads: int, pinned: bool) -> float:
        if self.cancel_after is not None and len(self.taken) >= self.cancel_after:
            raise Cancelled("stopped")
        rate = self._rate(phase, n_threads, pinned, len(self.taken))
        self.taken.append((phase, n_threads, pinned))
        self.clock.now_s += self._sample_s
        return rate

    def cancel(self) -> None:
        self.is_cancelled = True

    def restore(self) -> None:
        self.n_restored += 1

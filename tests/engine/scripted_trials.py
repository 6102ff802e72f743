"""Trials whose rates and times are written down: a sweep over them computes nothing and takes no
time."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import Cancelled, EngineError

Rate = Callable[[str, int, bool, int], float]
"""Phase, threads, pinned, how many samples were taken before -> tokens per second."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class ScriptedTrials:
    def __init__(
        self, rate: Rate, sample_s: float = 0.5, sizes: dict[str, int] | None = None
    ) -> None:
        self.clock = Clock()
        self._rate = rate
        self._sample_s = sample_s
        self.sizes = sizes or {"decode": 4, "prefill": 32}
        self.n_context = 840
        self.notes = ()
        self.can_pin = False
        self.threads = {"decode": 2, "prefill": 2}
        self.pinned = False
        self.option_trials: dict[str, ScriptedOptions] = {}
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

    def options(self, option: str) -> ScriptedOptions:
        return self.option_trials[option]

    def cancel(self) -> None:
        self.is_cancelled = True

    def restore(self) -> None:
        self.n_restored += 1


OptionRate = Callable[[str, str, int], float]
"""Phase, option, how many samples were taken before -> tokens per second."""


class ScriptedOptions:
    """Scripted speeds of several ways to keep something in memory."""

    def __init__(
        self,
        trials: ScriptedTrials,
        option: str,
        options: tuple[str, ...],
        present: str,
        rate: OptionRate,
    ) -> None:
        self.part = option
        self.options = options
        self.present = present
        self._rate = rate
        self._trials = trials
        self.n_context = 2048
        self.estimate = "a copy of 2.0 GB; 4.0 GB are available"
        self.left_out = ""
        self.sizes = {"decode": 4, "prefill": 32}
        self.steps = ["copying: 1 of 2", "copying: 2 of 2"]
        self.step_s = 1.0
        self.open_error: EngineError | None = None
        self.said = ""
        self.cancel_after: int | None = None
        self.taken: list[tuple[str, str, int, bool]] = []
        self.n_opened = self.n_closed = 0
        trials.option_trials[option] = self

    def own_bytes(self, option: str) -> int:
        return {"huge": 2_000_000_000, "f16": 300_000_000, "q8_0": 160_000_000}.get(option, 0)

    def open(self, tell: Callable[[str], None]) -> None:
        self.n_opened += 1
        if self.open_error is not None:
            raise self.open_error
        for step in self.steps:
            tell(step)
            self._trials.clock.now_s += self.step_s

    def n_tokens(self, phase: str) -> int:
        return self.sizes.get(phase, 0)

    def measure(self, phase: str, option: str, n_threads: int, pinned: bool) -> float:
        if self.cancel_after is not None and len(self.taken) >= self.cancel_after:
            raise Cancelled("stopped")
        rate = self._rate(phase, option, len(self.taken))
        self.taken.append((phase, option, n_threads, pinned))
        self._trials.clock.now_s += 0.5
        return rate

    def remark(self) -> str:
        return self.said

    def close(self) -> None:
        self.n_closed += 1

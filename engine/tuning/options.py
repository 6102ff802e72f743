"""Comparison of memory options (weights modes, KV types) with the present one.

As with thread counts, options are measured in turn, in both orders, and compared within a pass. The
present option stays unless another is certainly faster, since a change costs memory or accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.errors import MemoryPlanError
from engine.tuning.option_reasons import explain_comparison
from engine.tuning.report import DECODE, PREFILL, Comparison, Option, ReportPreparation
from engine.tuning.statistics import GAIN, Contest, Interval

if TYPE_CHECKING:
    from engine.tuning.trials import OptionTrials

MAX_ROUNDS = 6
"""Limit on the rounds of two passes."""


class TimeBudgetSpentError(Exception):
    """A preparation has used up the time of its part."""


class OptionSearch:
    """Comparison of the options of one kind.

    Args:
        trials: takes the samples.
        clock: monotonic seconds.

    Attributes:
        round_number: number of the present round, from 1.
        measuring: the sample that is being taken, in words; empty between samples.
    """

    def __init__(self, trials: OptionTrials, clock: Callable[[], float]) -> None:
        self._trials = trials
        self._clock = clock
        self._names = list(trials.options)
        self._contests: dict[str, Contest] = {}
        self._estimate = trials.estimate
        self._left_out = trials.left_out
        self._remark = ""
        self.round_number = 0
        self.measuring = ""

    @property
    def part(self) -> str:
        """``WEIGHTS`` or ``KV``."""
        return self._trials.part

    @property
    def n_options(self) -> int:
        """Number of options to measure; 0 if there is nothing to compare."""
        return len(self._names) if len(self._names) > 1 else 0

    def run(
        self,
        threads: Callable[[str], int],
        pinned: bool,
        until_s: float,
        check: Callable[[], None],
        report_preparation: ReportPreparation,
    ) -> Generator[None]:
        """Measure, and yield after each sample.

        Args:
            threads: returns the thread count of a phase.
            pinned: whether threads are bound to CPUs.
            until_s: time, on the search's clock, after which no sample begins.
            check: raises ``Cancelled`` after a stop.
            report_preparation: called with a line about each preparation.

        Raises:
            Cancelled: the search was stopped; the present option is restored.
        """
        if len(self._names) < 2:
            return
        try:
            self._trials.open(report_preparation)
            phases = [phase for phase in (DECODE, PREFILL) if self._trials.n_tokens(phase)]
            self._contests = {phase: Contest(range(len(self._names))) for phase in phases}
            for number, phase, index in self._samples():
                check()
                if self._clock() >= until_s:
                    break
                self.measuring = f"{phase}, {self._names[index]}"
                rate = self._trials.measure(phase, self._names[index], threads(phase), pinned)
                self._contests[phase].add(number, index, rate)
                yield
            self._remark = self._trials.remark()
        except MemoryPlanError as error:
            self._left_out = f"not tried: {error}"
        except TimeBudgetSpentError:
            self._left_out = "not tried: the time was up before everything was ready"
        finally:
            self._trials.close()
            self.measuring = ""

    def _samples(self) -> Iterator[tuple[int, str, int]]:
        """Yield (pass, phase, option) of each sample, until the comparison is settled."""
        for number in range(2 * MAX_ROUNDS):
            self.round_number = number // 2 + 1
            order = list(range(len(self._names)))
            if number % 2:
                order.reverse()
            for phase in self._contests:
                for index in order:
                    yield number, phase, index
            if self._is_settled:
                return

    def comparison(self, is_over: bool) -> Comparison:
        """Return the result so far, with an explanation if the search is over."""
        comparison = Comparison(
            part=self._trials.part,
            present=self._trials.present,
            options=tuple(map(self._option, self._names)),
            best=self._best,
            is_settled=self._is_settled,
            n_context=self._trials.n_context,
            estimate=self._estimate,
            left_out=self._left_out,
        )
        if is_over:
            return replace(comparison, reason=explain_comparison(comparison, self._remark))
        return comparison

    def _option(self, name: str) -> Option:
        index = self._names.index(name)
        tps = {
            phase: rate
            for phase, contest in self._contests.items()
            if (rate := contest.rate(index)) is not None
        }
        gain = {
            phase: ratio
            for phase in self._contests
            if (ratio := self._gain(phase, name)) is not None
        }
        return Option(name, self._trials.own_bytes(name), tps, gain)

    def _gain(self, phase: str, name: str, baseline: str | None = None) -> Interval | None:
        """Return the speed of an option relative to the present one, or to ``baseline``."""
        baseline = baseline or self._trials.present
        if name == baseline:
            return None
        return self._contests[phase].ratio(self._names.index(name), self._names.index(baseline))

    @property
    def _best(self) -> str:
        better = [name for name in self._names if self._helps(name)]
        if not better:
            return self._trials.present
        fastest = max(better, key=self._decode_gain)
        return next(
            name
            for name in better
            if name == fastest or not _is_gain(self._gain(DECODE, fastest, baseline=name))
        )

    def _decode_gain(self, name: str) -> float:
        if DECODE not in self._contests:
            return 1.0
        gain = self._gain(DECODE, name)
        if gain is None:
            return 1.0
        return gain.median

    def _helps(self, name: str) -> bool:
        gains = [gain for phase in self._contests if (gain := self._gain(phase, name)) is not None]
        return any(map(_is_gain, gains)) and not any(map(_is_loss, gains))

    @property
    def _is_settled(self) -> bool:
        gains = [
            self._gain(phase, name)
            for phase in self._contests
            for name in self._names
            if name != self._trials.present
        ]
        return bool(gains) and all(map(_is_decided, gains))


def _is_gain(gain: Interval | None) -> bool:
    """Whether a gain is certain and above ``GAIN``: the whole interval is above 1."""
    return gain is not None and gain.is_sure and gain.low > 1 and gain.median > GAIN


def _is_loss(gain: Interval) -> bool:
    """Whether the whole interval is below 1 and the loss exceeds ``GAIN``."""
    return gain.high < 1 and gain.median < 1 / GAIN


def _is_decided(gain: Interval | None) -> bool:
    if gain is None or not gain.is_sure:
        return False
    return _is_gain(gain) or gain.high < GAIN

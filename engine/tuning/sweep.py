"""The search for the best thread counts: which to try, in which order, and when to stop.

A pass measures every live count once, in ascending order, and the next pass in descending order
(ABCD DCBA), decode and prefill in turn. So slow drift of the machine affects all counts alike. Two
passes are a round; after each round, clearly slower counts are dropped. Memory options
(``options.py``) are compared afterwards, with the winning counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from engine.errors import Cancelled
from engine.machine.topology import Cores
from engine.tuning.options import MAX_ROUNDS, OptionSearch, TimeBudgetSpentError
from engine.tuning.reasons import explain
from engine.tuning.report import (
    COUNTS,
    DECODE,
    DONE,
    KV,
    MEASURING,
    PINNING,
    PREFILL,
    STOPPED,
    UNSURE,
    WEIGHTS,
    Comparison,
    Curve,
    Point,
    TuningReport,
)
from engine.tuning.statistics import Contest

if TYPE_CHECKING:
    from engine.tuning.trials import SessionTrials

BUDGETS_S = {COUNTS: 48.0, PINNING: 12.0, WEIGHTS: 45.0, KV: 60.0}
"""Seconds for each part, in the order of running; unused time goes to the next part."""
THREADS = (COUNTS, PINNING)
ALL_COUNTS_UP_TO = 12
"""Limit on the logical CPUs up to which every count is tried; above it only ``SELECTED_COUNTS``."""
SELECTED_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
EXPECTED_PASSES = 5
"""Passes that settle a contest if the speeds are steady."""
UNPINNED = 0
PINNED = 1
_PINNING_NAMES = ("not pinned", "pinned")


def counts_to_try(cores: Cores) -> list[int]:
    """Return the thread counts to try, in ascending order, including one above a quota."""
    max_count = cores.most_threads
    if cores.quota is not None:
        max_count = min(max_count, cores.quota + 1)
    if max_count <= ALL_COUNTS_UP_TO:
        return list(range(1, max_count + 1))
    selected = {*SELECTED_COUNTS, cores.n_fast, cores.n_physical, cores.default_threads, max_count}
    return sorted(count for count in selected if 1 <= count <= max_count)


def default_budget_s(parts: Sequence[str]) -> float:
    """Return the time for a sweep over some parts, in seconds."""
    return sum(BUDGETS_S[part] for part in parts)


class Sweep:
    """Search for the best settings. Iterate over it in the thread that owns the session; any thread
    may call ``cancel``.

    Args:
        trials: takes the samples.
        cores: processor of the machine.
        budget_s: limit on the time in seconds, exceeded by one sample at most; None for
            ``default_budget_s``.
        clock: monotonic seconds.
        parts: keys of ``BUDGETS_S``.
        earlier: earlier report on this session; its results for other parts are repeated, and its
            winners are used.

    Attributes:
        on_preparing: called, in the iterating thread, with a report during long preparations.
        others_cores: called at the end; returns the processor time of other programs, in cores, or
            None if negligible.
    """

    def __init__(
        self,
        trials: SessionTrials,
        cores: Cores,
        budget_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        parts: Sequence[str] = THREADS,
        earlier: TuningReport | None = None,
    ) -> None:
        self._trials = trials
        self._cores = cores
        self._clock = clock
        if budget_s is None:
            budget_s = default_budget_s(parts)
        self._budget_s = budget_s
        self._parts = [part for part in BUDGETS_S if part in parts]
        self._earlier = earlier
        self._cancelled = threading.Event()
        self._started_s = clock()
        self._contests: dict[str, Contest] = {}
        self._pinning: dict[str, Contest] = {}
        self._searches = [
            OptionSearch(trials.options(part), clock) for part in (WEIGHTS, KV) if part in parts
        ]
        self._round = 0
        self._part = ""
        self._n_passes = 0
        """Passes of the present part that have begun."""
        self._n_samples = 0
        self._sampling_s = 0.0
        self._measuring = ""
        self._preparing = ""
        self.on_preparing: Callable[[TuningReport], None] = _ignore
        self.others_cores: Callable[[], float | None] = _unknown

    def cancel(self) -> None:
        """Stop measuring; the last report has the results so far."""
        self._cancelled.set()
        self._trials.cancel()

    def __iter__(self) -> Iterator[TuningReport]:
        """Yield a report before the first sample and after each; the last one says how it ended.

        Raises:
            EngineError: errors of the trials except ``Cancelled``; counts and pinning are restored.
        """
        yield self._report(MEASURING)
        try:
            for _ in self._measure_all():
                yield self._report(MEASURING)
            state = UNSURE if self._is_unsure else DONE
        except Cancelled:
            state = STOPPED
        finally:
            self._trials.restore()
        self._measuring = ""
        self._preparing = ""
        yield self._report(state)

    def _measure_all(self) -> Iterator[None]:
        if self._parts != [KV]:  # KV types are compared in sessions of their own
            self._trials.prepare()
        phases = [phase for phase in (DECODE, PREFILL) if self._trials.n_tokens(phase)]
        if COUNTS in self._parts:
            self._contests = {phase: Contest(counts_to_try(self._cores)) for phase in phases}
            self._begin(COUNTS)
            yield from self._play(self._contests, self._deadline_s(COUNTS), self._measure_count)
        if PINNING in self._parts and self._trials.can_pin:
            crowds = [phase for phase in phases if self._threads(phase) > 1]
            self._pinning = {phase: Contest([UNPINNED, PINNED]) for phase in crowds}
        if self._pinning:
            self._begin(PINNING)
            yield from self._play(self._pinning, self._deadline_s(PINNING), self._measure_pinning)
        for search in self._searches:
            self._begin(search.part)
            yield from self._compare(search)

    def _begin(self, part: str) -> None:
        self._part = part
        self._n_passes = 0

    def _compare(self, search: OptionSearch) -> Iterator[None]:
        """Compare the memory options of one part, with the best known thread counts."""
        self._trials.restore()
        pinned = self._trials.pinned if self._pinned is None else self._pinned
        until_s = self._deadline_s(search.part)

        def report_preparation(text: str) -> None:
            self._check()
            if self._clock() >= until_s:
                raise TimeBudgetSpentError
            self._preparing = text
            self._measuring = ""
            self.on_preparing(self._report(MEASURING))

        with closing(
            search.run(self._threads, pinned, until_s, self._check, report_preparation)
        ) as samples:
            for _ in samples:
                self._preparing = ""
                self._round = search.round_number
                self._n_passes = 2 * (self._round - 1)
                self._measuring = search.measuring
                yield
        self._preparing = ""

    def _deadline_s(self, part: str) -> float:
        """Return the time at which a part must end: its share and the unused time of earlier
        parts."""
        parts = self._parts[: self._parts.index(part) + 1]
        return self._started_s + self._budget_s * default_budget_s(parts) / default_budget_s(
            self._parts
        )

    def _threads(self, phase: str) -> int:
        """Return the best known count."""
        best = None
        if phase in self._contests:
            best = self._contests[phase].winner
        elif self._earlier is not None:
            best = self._earlier.best(phase)
        return best or self._trials.threads[phase]

    def _play(
        self, contests: dict[str, Contest], until_s: float, measure: Callable[[str, int], float]
    ) -> Iterator[None]:
        """Measure the settings of each phase, pass by pass, until all contests are settled or the
        time is up."""
        for number in range(2 * MAX_ROUNDS):
            self._round = number // 2 + 1
            self._n_passes = number
            for phase, contest in contests.items():
                for setting in self._order(contest, number):
                    if self._clock() >= until_s:
                        return
                    contest.add(number, setting, measure(phase, setting))
                    yield
                if number % 2:
                    contest.drop_slow()
            if all(contest.is_settled for contest in contests.values()):
                return

    def _order(self, contest: Contest, number: int) -> Sequence[int]:
        if contest.is_settled:
            return ()
        # The count in use comes first: it matters most if the time ends early.
        live = sorted(contest.live, key=lambda setting: setting != self._cores.default_threads)
        if number % 2 == 0:
            return live
        return live[::-1]

    def _measure_count(self, phase: str, n_threads: int) -> float:
        unit = "thread" if n_threads == 1 else "threads"
        self._measuring = f"{phase}, {n_threads} {unit}"
        return self._sample(phase, n_threads, False)

    def _measure_pinning(self, phase: str, setting: int) -> float:
        n_threads = self._threads(phase)
        self._measuring = f"{phase}, {n_threads} threads, {_PINNING_NAMES[setting]}"
        return self._sample(phase, n_threads, setting == PINNED)

    def _sample(self, phase: str, n_threads: int, pinned: bool) -> float:
        self._check()
        began_s = self._clock()
        rate = self._trials.measure(phase, n_threads, pinned)
        self._sampling_s += self._clock() - began_s
        self._n_samples += 1
        return rate

    @property
    def _expected_left_s(self) -> float:
        """Seconds that the search will probably take, from the time of a sample so far; 0 before
        the first one."""
        if not self._n_samples or self._part not in self._parts:
            return 0.0
        left = self._parts[self._parts.index(self._part) + 1 :]
        n_samples = max(1, EXPECTED_PASSES - self._n_passes) * self._samples_per_pass(self._part)
        n_samples += sum(EXPECTED_PASSES * self._samples_per_pass(part) for part in left)
        return n_samples * self._sampling_s / self._n_samples

    def _samples_per_pass(self, part: str) -> int:
        if part == COUNTS:
            live = [len(contest.live) for contest in self._contests.values()]
            return sum(live)
        if part == PINNING:
            n_phases = sum(self._threads(phase) > 1 for phase in self._contests)
            return 2 * n_phases * self._trials.can_pin
        return sum(2 * search.n_options for search in self._searches if search.part == part)

    def _check(self) -> None:
        """Raise ``Cancelled`` after a cancel between two samples."""
        if self._cancelled.is_set():
            raise Cancelled("stopped")

    # ---- reports

    @property
    def _is_unsure(self) -> bool:
        if COUNTS in self._parts and not self._contests:
            return True
        compared = [search.comparison(is_over=True) for search in self._searches]
        return not all(contest.is_settled for contest in self._contests.values()) or not all(
            comparison.is_settled for comparison in compared if comparison.is_measured
        )

    def _report(self, state: str) -> TuningReport:
        is_over = state != MEASURING
        earlier = None if COUNTS in self._parts else self._earlier
        curves = tuple(self._curve(phase, contest) for phase, contest in self._contests.items())
        reasons = tuple(
            self._explain(curve) for curve in curves if is_over and curve.best is not None
        )
        if earlier is not None:
            curves = earlier.curves
            reasons = earlier.reasons
        return TuningReport(
            curves=curves,
            cores=self._cores,
            state=state,
            measuring=self._measuring,
            round_number=self._round,
            n_rounds=MAX_ROUNDS,
            elapsed_s=self._clock() - self._started_s,
            expected_left_s=0.0 if is_over else self._expected_left_s,
            budget_s=self._budget_s,
            n_context=self._trials.n_context,
            pinned=self._pinned,
            notes=self._trials.notes,
            reasons=reasons,
            comparisons=self._comparisons(is_over),
            preparing=self._preparing,
        )

    def _explain(self, curve: Curve) -> str:
        return explain(curve, self._cores, self.others_cores())

    def _comparisons(self, is_over: bool) -> tuple[Comparison, ...]:
        """Return the comparisons of this search, and those of the earlier report for other
        parts."""
        comparisons = [search.comparison(is_over) for search in self._searches]
        if self._earlier is not None:
            comparisons += [
                comparison
                for comparison in self._earlier.comparisons
                if comparison.part not in self._parts
            ]
        order = list(BUDGETS_S)
        return tuple(sorted(comparisons, key=lambda comparison: order.index(comparison.part)))

    def _curve(self, phase: str, contest: Contest) -> Curve:
        best = contest.winner
        fastest = contest.leader
        gain = None
        if fastest is not None and best is not None and fastest != best:
            gain = contest.ratio(fastest, best)
        pinned_gain = None
        if phase in self._pinning:
            pinned_gain = self._pinning[phase].ratio(PINNED, UNPINNED)
        points = (
            Point(n, self._cores.kind(n), contest.rate(n), n not in contest.live)
            for n in contest.settings
        )
        return Curve(
            phase=phase,
            points=tuple(points),
            best=best,
            fastest=fastest,
            gain=gain,
            is_settled=contest.is_settled,
            n_tokens=self._trials.n_tokens(phase),
            pinned_gain=pinned_gain,
        )

    @property
    def _pinned(self) -> bool | None:
        """Whether bound threads are faster in one phase and slower in none; None if not
        measured."""
        measured = [
            contest
            for contest in self._pinning.values()
            if contest.ratio(PINNED, UNPINNED) is not None
        ]
        if not measured:
            if self._earlier is not None and COUNTS not in self._parts:
                return self._earlier.pinned
            return None
        helps = any(contest.winner == PINNED and contest.is_settled for contest in measured)
        return helps and not any(contest.is_beaten(PINNED) for contest in measured)


def _unknown() -> float | None:
    return None


def _ignore(report: TuningReport) -> None:
    pass

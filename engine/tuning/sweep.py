"""The search for the best thread counts: which to try, in which order, and when to stop. Measures nothing itself.

A pass measures every live count once, upwards, the next pass downwards (ABCD DCBA), decode and prefill in turn: slow
drift of the machine then hits all of them alike. Two passes are a round; after each, what is clearly slower is dropped.
What else may be compared (``tuning_options.py``) is, with the counts that won.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Protocol

from engine.errors import Cancelled
from engine.machine.topology import Cores
from engine.tuning.options import OptionSearch, OptionTrials, Setup, TimeUp
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

BUDGETS_S = {COUNTS: 48.0, PINNING: 12.0, WEIGHTS: 45.0, KV: 60.0}
"""How long each part may take, in the order in which they run; what one leaves is the next one's."""
THREADS = (COUNTS, PINNING)
MOST_ROUNDS = 6
ALL_COUNTS_UP_TO = 12
"""With more logical CPUs than this, only telling counts are tried."""
TELLING_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
UNPINNED, PINNED = 0, 1


class Trials(Protocol):
    """What a sweep measures with; ``engine.tuning.trials`` does it on a session."""

    n_context: int
    bytes_per_token: int
    can_pin: bool
    threads: dict[str, int]
    """Those in use, by phase."""
    pinned: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """What cannot be measured, and why."""

    def prepare(self) -> None:
        """Warm up and choose how many tokens a sample takes. Raises ``Cancelled``."""

    def n_tokens(self, phase: str) -> int:
        """Tokens of one sample; 0 where the phase cannot be measured. Known after ``prepare``."""

    def measure(self, phase: str, n_threads: int, pinned: bool) -> float:
        """Take one sample; returns tokens per second. Raises ``Cancelled``."""

    def options(self, part: str) -> OptionTrials:
        """What the options of one part are measured with."""

    def cancel(self) -> None:
        """Make what runs raise ``Cancelled``. For any thread."""

    def restore(self) -> None:
        """Leave everything as it was found."""


def counts_to_try(cores: Cores) -> list[int]:
    """Thread counts worth a trial, ascending; one beyond a quota, to show what it does."""
    most = cores.most_threads if cores.quota is None else min(cores.most_threads, cores.quota + 1)
    if most <= ALL_COUNTS_UP_TO:
        return list(range(1, most + 1))
    telling = {*TELLING_COUNTS, cores.n_fast, cores.n_physical, cores.default_threads, most}
    return sorted(count for count in telling if 1 <= count <= most)


def default_budget_s(parts: Sequence[str]) -> float:
    """Return the time that suits a search for so much."""
    return sum(BUDGETS_S[part] for part in parts)


class Sweep:
    """One search. Iterate over it in the thread that owns the session; ``cancel`` is for all others.

    Args:
        trials: what measures.
        cores: the machine.
        budget_s: it takes no longer than this, give or take a sample; None for what suits the parts.
        clock: monotonic seconds.
        parts: what to find out, of ``BUDGETS_S``.
        earlier: found before on this session; what it says of other parts is said again, and its winners are used.

    Attributes:
        on_preparing: called, in the iterating thread, with a report while something is prepared that takes a while.
        others_cores: asked, at the end, for the cores' worth of time that other programs took; None for too little to
            matter.
    """

    def __init__(
        self,
        trials: Trials,
        cores: Cores,
        budget_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        parts: Sequence[str] = THREADS,
        earlier: TuningReport | None = None,
    ) -> None:
        self._trials, self._cores, self._clock = trials, cores, clock
        self._budget_s = default_budget_s(parts) if budget_s is None else budget_s
        self._parts = [part for part in BUDGETS_S if part in parts]
        self._earlier = earlier
        self._cancelled = threading.Event()
        self._started_s = clock()
        self._contests: dict[str, Contest] = {}
        self._pinning: dict[str, Contest] = {}
        self._searches = [OptionSearch(trials.options(part), clock) for part in (WEIGHTS, KV) if part in parts]
        self._round = 0
        self._measuring = self._preparing = ""
        self.on_preparing: Callable[[TuningReport], None] = _show_nobody
        self.others_cores: Callable[[], float | None] = _none

    def cancel(self) -> None:
        """Stop measuring; what was found so far is reported."""
        self._cancelled.set()
        self._trials.cancel()

    def __iter__(self) -> Iterator[TuningReport]:
        """Yield a report before the first sample and after each; the last one says how it ended.

        Raises:
            EngineError: what the trials raise, but ``Cancelled``; everything is as it was found then.
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
        self._measuring = self._preparing = ""
        yield self._report(state)

    def _measure_all(self) -> Iterator[None]:
        if self._parts != [KV]:  # caches that are compared are prepared by themselves
            self._trials.prepare()
        phases = [phase for phase in (DECODE, PREFILL) if self._trials.n_tokens(phase)]
        if COUNTS in self._parts:
            self._contests = {phase: Contest(counts_to_try(self._cores)) for phase in phases}
            yield from self._play(self._contests, self._deadline_s(COUNTS), self._measure_count)
        if PINNING in self._parts and self._trials.can_pin:
            crowds = [phase for phase in phases if self._threads(phase) > 1]
            self._pinning = {phase: Contest([UNPINNED, PINNED]) for phase in crowds}
        if self._pinning:
            yield from self._play(self._pinning, self._deadline_s(PINNING), self._measure_pinning)
        for search in self._searches:
            yield from self._compare(search)

    def _compare(self, search: OptionSearch) -> Iterator[None]:
        """Find out about one more thing, with the threads that are known to be best."""
        self._trials.restore()
        pinned = self._trials.pinned if self._pinned is None else self._pinned
        until_s = self._deadline_s(search.part)

        def tell(text: str) -> None:
            self._check()
            if self._clock() >= until_s:
                raise TimeUp
            self._preparing, self._measuring = text, ""
            self.on_preparing(self._report(MEASURING))

        with closing(search.run(Setup(self._threads, pinned, until_s, MOST_ROUNDS, self._check), tell)) as samples:
            for _ in samples:
                self._preparing, self._round, self._measuring = "", search.round_number, search.measuring
                yield
        self._preparing = ""

    def _deadline_s(self, part: str) -> float:
        """When a part must be over: its share of the time, and what those before it left."""
        before = self._parts[: self._parts.index(part) + 1]
        return self._started_s + self._budget_s * default_budget_s(before) / default_budget_s(self._parts)

    def _threads(self, phase: str) -> int:
        """The best count that is known."""
        contest = self._contests.get(phase)
        earlier = self._earlier.best(phase) if self._earlier is not None else None
        return (contest.winner if contest is not None else earlier) or self._trials.threads[phase]

    def _play(
        self, contests: dict[str, Contest], until_s: float, measure: Callable[[str, int], float]
    ) -> Iterator[None]:
        """Let settings compete in each phase, pass by pass, until all is settled or the time is up."""
        for number in range(2 * MOST_ROUNDS):
            self._round = number // 2 + 1
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
        # The count in use comes first: it is worth most where the time ends early.
        live = sorted(contest.live, key=lambda setting: setting != self._cores.default_threads)
        return live if number % 2 == 0 else live[::-1]

    def _measure_count(self, phase: str, n_threads: int) -> float:
        self._measuring = f"{phase}, {n_threads} thread{'s' if n_threads > 1 else ''}"
        return self._sample(phase, n_threads, False)

    def _measure_pinning(self, phase: str, setting: int) -> float:
        n_threads = self._threads(phase)
        self._measuring = f"{phase}, {n_threads} threads, {'pinned' if setting == PINNED else 'not pinned'}"
        return self._sample(phase, n_threads, setting == PINNED)

    def _sample(self, phase: str, n_threads: int, pinned: bool) -> float:
        self._check()
        return self._trials.measure(phase, n_threads, pinned)

    def _check(self) -> None:
        """Notice a cancel that came between two samples."""
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
        earlier = self._earlier if COUNTS not in self._parts else None
        curves = tuple(self._curve(phase, contest) for phase, contest in self._contests.items())
        reasons = tuple(self._explain(curve) for curve in curves if is_over and curve.best is not None)
        if earlier is not None:
            curves, reasons = earlier.curves, earlier.reasons
        return TuningReport(
            curves=curves,
            cores=self._cores,
            state=state,
            measuring=self._measuring,
            round_number=self._round,
            n_rounds=MOST_ROUNDS,
            elapsed_s=self._clock() - self._started_s,
            budget_s=self._budget_s,
            n_context=self._trials.n_context,
            pinned=self._pinned,
            notes=self._trials.notes,
            reasons=reasons,
            comparisons=self._comparisons(is_over),
            preparing=self._preparing,
        )

    def _explain(self, curve: Curve) -> str:
        return explain(curve, self._cores, self._trials.bytes_per_token, self.others_cores())

    def _comparisons(self, is_over: bool) -> tuple[Comparison, ...]:
        """Those of this search, and of the earlier one what this does not look at, as far as it still holds."""
        own = [search.comparison(is_over) for search in self._searches]
        earlier = self._earlier.comparisons if self._earlier is not None else ()
        kept = [comparison for comparison in earlier if comparison.part not in self._parts]
        return tuple(sorted([*kept, *own], key=lambda comparison: list(BUDGETS_S).index(comparison.part)))

    def _curve(self, phase: str, contest: Contest) -> Curve:
        best, fastest = contest.winner, contest.leader
        gain = contest.ratio(fastest, best) if fastest is not None and best is not None and fastest != best else None
        pinning = self._pinning.get(phase)
        points = (Point(n, self._cores.kind(n), contest.rate(n), n not in contest.live) for n in contest.settings)
        return Curve(
            phase=phase,
            points=tuple(points),
            best=best,
            fastest=fastest,
            gain=gain,
            is_settled=contest.is_settled,
            n_tokens=self._trials.n_tokens(phase),
            pinned_gain=pinning.ratio(PINNED, UNPINNED) if pinning is not None else None,
        )

    @property
    def _pinned(self) -> bool | None:
        """Whether binding the threads helps somewhere and hurts nowhere; None before it was measured at all."""
        measured = [contest for contest in self._pinning.values() if contest.ratio(PINNED, UNPINNED) is not None]
        if not measured:
            return self._earlier.pinned if self._earlier is not None and COUNTS not in self._parts else None
        helps = any(contest.winner == PINNED and contest.is_settled for contest in measured)
        return helps and not any(contest.is_beaten(PINNED) for contest in measured)


def _none() -> float | None:
    return None


def _show_nobody(report: TuningReport) -> None:
    pass

"""The search for the best thread counts: which to try, in which order, and when to stop. Measures nothing itself.

A pass measures every live count once, upwards, the next pass downwards (ABCD DCBA), decode and prefill in turn: slow
drift of the machine then hits all of them alike. Two passes are a round; after each, what is clearly slower is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from engine.errors import Cancelled
from engine.topology import Cores
from engine.tuning_reasons import explain
from engine.tuning_report import (
    DECODE,
    DONE,
    MEASURING,
    PREFILL,
    STOPPED,
    UNSURE,
    Curve,
    Point,
    TuningReport,
)
from engine.tuning_statistics import Contest

DEFAULT_BUDGET_S = 60.0
MOST_ROUNDS = 6
ALL_COUNTS_UP_TO = 12
"""With more logical CPUs than this, only telling counts are tried."""
TELLING_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
COUNTS_SHARE = 0.8
"""Of the time, for thread counts; the rest is for pinning."""
UNPINNED, PINNED = 0, 1


class Trials(Protocol):
    """What a sweep measures with; ``engine.tuning_trials`` does it on a session."""

    n_context: int
    bytes_per_token: int
    can_pin: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """What cannot be measured, and why."""

    def prepare(self) -> None:
        """Warm up and choose how many tokens a sample takes. Raises ``Cancelled``."""

    def n_tokens(self, phase: str) -> int:
        """Tokens of one sample; 0 where the phase cannot be measured. Known after ``prepare``."""

    def measure(self, phase: str, n_threads: int, pinned: bool) -> float:
        """Take one sample; returns tokens per second. Raises ``Cancelled``."""

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


class Sweep:
    """One search. Iterate over it in the thread that owns the session; ``cancel`` is for all others.

    Args:
        trials: what measures.
        cores: the machine.
        budget_s: it takes no longer than this, give or take a sample.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        trials: Trials,
        cores: Cores,
        budget_s: float = DEFAULT_BUDGET_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trials, self._cores, self._budget_s, self._clock = trials, cores, budget_s, clock
        self._cancelled = threading.Event()
        self._started_s = clock()
        self._contests: dict[str, Contest] = {}
        self._pinning: dict[str, Contest] = {}
        self._round = 0
        self._measuring = ""

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
        self._measuring = ""
        yield self._report(state)

    def _measure_all(self) -> Iterator[None]:
        self._trials.prepare()
        phases = [phase for phase in (DECODE, PREFILL) if self._trials.n_tokens(phase)]
        self._contests = {phase: Contest(counts_to_try(self._cores)) for phase in phases}
        yield from self._play(self._contests, self._started_s + COUNTS_SHARE * self._budget_s, self._measure_count)
        if self._trials.can_pin:
            crowds = [phase for phase in phases if (self._contests[phase].winner or 1) > 1]
            self._pinning = {phase: Contest([UNPINNED, PINNED]) for phase in crowds}
        if self._pinning:
            yield from self._play(self._pinning, self._started_s + self._budget_s, self._measure_pinning)

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
        n_threads = self._contests[phase].winner
        assert n_threads is not None
        self._measuring = f"{phase}, {n_threads} threads, {'pinned' if setting == PINNED else 'not pinned'}"
        return self._sample(phase, n_threads, setting == PINNED)

    def _sample(self, phase: str, n_threads: int, pinned: bool) -> float:
        if self._cancelled.is_set():  # one that came between two samples
            raise Cancelled("stopped")
        return self._trials.measure(phase, n_threads, pinned)

    # ---- reports

    @property
    def _is_unsure(self) -> bool:
        return not self._contests or not all(contest.is_settled for contest in self._contests.values())

    def _report(self, state: str) -> TuningReport:
        curves = tuple(self._curve(phase, contest) for phase, contest in self._contests.items())
        reasons = (
            ()
            if state == MEASURING
            else tuple(
                explain(curve, self._cores, self._trials.bytes_per_token) for curve in curves if curve.best is not None
            )
        )
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
        )

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
            return None
        helps = any(contest.winner == PINNED and contest.is_settled for contest in measured)
        return helps and not any(contest.is_beaten(PINNED) for contest in measured)

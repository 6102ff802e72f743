"""Results of a sweep so far, as immutable records for display."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.machine.topology import Cores
from engine.tuning.statistics import Interval

DECODE = "decode"
PREFILL = "prefill"

COUNTS = "counts"
PINNING = "pinning"
WEIGHTS = "weights"
KV = "kv"
"""Parts of a sweep: thread counts, binding to CPUs, place of the weights, type of the KV cache."""

MEASURING = "measuring"
DONE = "done"
STOPPED = "stopped"
UNSURE = "unsure"
"""States of a sweep. ``UNSURE``: time or rounds ran out before the best was certain."""

ReportPreparation = Callable[[str], None]
"""Called with a line about a preparation; raises ``Cancelled`` or ``TimeBudgetSpentError`` to end
it."""


@dataclass(frozen=True)
class Point:
    """Result for a thread count.

    Attributes:
        n_threads: number of threads.
        kind: kind of CPU of the last thread: "core", "efficiency core" or "sibling".
        tps: tokens per second; None before the first sample.
        is_dropped: whether the count was clearly slower and is no longer measured.
    """

    n_threads: int
    kind: str
    tps: Interval | None
    is_dropped: bool


@dataclass(frozen=True)
class Curve:
    """All thread counts of one phase.

    Attributes:
        phase: ``DECODE`` or ``PREFILL``.
        points: thread counts in ascending order.
        best: count to use; None before the first sample.
        fastest: count with the highest median, perhaps only by noise.
        gain: speed of ``fastest`` relative to ``best``; None if they are the same.
        is_settled: whether further samples would hardly change ``best``.
        n_tokens: number of tokens of one sample.
        pinned_gain: speed of the best count with bound threads relative to unbound; None if not
            measured.
    """

    phase: str
    points: tuple[Point, ...]
    best: int | None
    fastest: int | None
    gain: Interval | None
    is_settled: bool
    n_tokens: int
    pinned_gain: Interval | None = None

    def point(self, n_threads: int) -> Point | None:
        """Return the point of a count; None if it was not tried."""
        return next((point for point in self.points if point.n_threads == n_threads), None)

    @property
    def close_counts(self) -> tuple[int, ...]:
        """Counts that cannot be told from the best one, which is among them; empty if the best one
        stands alone."""
        best = self.point(self.best) if self.best is not None else None
        if best is None or best.tps is None:
            return ()
        close = [
            point.n_threads
            for point in self.points
            if point.tps is not None
            and not point.is_dropped
            and point.tps.low <= best.tps.high
            and best.tps.low <= point.tps.high
        ]
        return tuple(close) if len(close) > 1 else ()

    def is_certain_from(self, n_threads: int) -> bool:
        """Whether further samples would hardly change ``best``, or a count is clearly slower."""
        point = self.point(n_threads)
        return self.is_settled or (point is not None and point.is_dropped)


@dataclass(frozen=True)
class Option:
    """Result for a memory option.

    Attributes:
        name: weights mode or KV type.
        own_bytes: memory that only this option needs, in bytes.
        tps: tokens per second by measured phase.
        gain: speed relative to the present option, by phase; empty for the present option.
    """

    name: str
    own_bytes: int
    tps: Mapping[str, Interval] = field(default_factory=dict)
    gain: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Memory options of the weights or of the KV cache, compared with the one in use.

    Attributes:
        part: ``WEIGHTS`` or ``KV``.
        present: option in use.
        options: options by ascending memory.
        best: the present option, unless another is certainly faster in one phase and slower in
            none.
        is_settled: whether further samples would hardly change ``best``.
        n_context: number of tokens in the measured context.
        estimate: memory needed to try the options, one line.
        left_out: reason why some or all options were not measured; empty if all were.
        reason: a sentence about the result; empty before the end.
    """

    part: str
    present: str
    options: tuple[Option, ...]
    best: str
    is_settled: bool
    n_context: int
    estimate: str
    left_out: str = ""
    reason: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether any option was measured."""
        return any(option.gain for option in self.options)

    def option(self, name: str) -> Option | None:
        """Return the option of a name; None if unknown."""
        return next((option for option in self.options if option.name == name), None)


@dataclass(frozen=True)
class TuningReport:
    """A sweep, running or over.

    Attributes:
        curves: curves of the phases that can be measured.
        cores: processor of the machine.
        state: ``MEASURING``, ``DONE``, ``STOPPED`` or ``UNSURE``.
        measuring: the sample that is being taken, in words; empty between samples.
        round_number: number of the present round, from 1.
        n_rounds: limit on rounds; a sweep ends earlier if everything is settled.
        elapsed_s: time used, in seconds.
        budget_s: time allowed, in seconds.
        n_context: number of tokens in the measured context.
        pinned: whether bound threads proved faster; None if not measured.
        notes: measurements that were not possible, with the reason, one line each.
        reasons: explanations of the winners, one or two sentences per phase; empty while the sweep
            runs.
        comparisons: comparisons of the requested memory options.
        preparing: the preparation in progress, in words; empty while measuring.
        expected_left_s: probable remaining time in seconds; 0 if unknown.
    """

    curves: tuple[Curve, ...]
    cores: Cores
    state: str
    measuring: str
    round_number: int
    n_rounds: int
    elapsed_s: float
    budget_s: float
    n_context: int
    pinned: bool | None = None
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    preparing: str = ""
    expected_left_s: float = 0.0

    def comparison(self, part: str) -> Comparison | None:
        """Return the comparison of one part, or None."""
        return next(
            (comparison for comparison in self.comparisons if comparison.part == part), None
        )

    def curve(self, phase: str) -> Curve | None:
        """Return the curve of one phase, or None."""
        return next((curve for curve in self.curves if curve.phase == phase), None)

    def best(self, phase: str) -> int | None:
        """Return the best count of one phase, or None."""
        curve = self.curve(phase)
        if curve is not None:
            return curve.best
        return None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be measured."""
        return self.state != MEASURING

    @property
    def seconds_left(self) -> float:
        """Limit on the remaining time, in seconds."""
        if self.is_over:
            return 0.0
        return max(0.0, self.budget_s - self.elapsed_s)

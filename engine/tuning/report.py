"""Results of a sweep so far, as small immutable records for display."""

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

Tell = Callable[[str], None]
"""Takes a line about the present preparation; raises ``Cancelled`` or ``TimeBudgetSpentError`` to end it."""


@dataclass(frozen=True)
class Point:
    """One thread count.

    Attributes:
        n_threads: the count.
        kind: kind of CPU that its last thread runs on: "core", "efficiency core" or "sibling".
        tps: tokens per second; None before it was measured.
        is_dropped: whether it was clearly slower and is not measured any more.
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
        points: by rising count.
        best: the count to use; None before anything was measured.
        fastest: the count with the highest median, perhaps only by noise.
        gain: speed of ``fastest`` relative to ``best``; None if they are the same.
        is_settled: whether further samples would hardly change ``best``.
        n_tokens: tokens of one sample.
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
        """The point of one count."""
        return next((point for point in self.points if point.n_threads == n_threads), None)


@dataclass(frozen=True)
class Option:
    """One memory option.

    Attributes:
        name: a weights mode or a KV type.
        own_bytes: bytes of memory that it needs for itself.
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
        present: the option in use.
        options: by rising memory.
        best: the present one, unless another is certainly faster in one phase and slower in none.
        is_settled: whether further samples would hardly change ``best``.
        n_context: tokens in the context that was measured.
        estimate: memory needed to try the options, one line.
        left_out: why some or all options were not measured; "" if all were.
        reason: a sentence about the result; "" before the end.
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
        curves: of the phases that can be measured.
        cores: the machine.
        state: ``MEASURING``, ``DONE``, ``STOPPED`` or ``UNSURE``.
        measuring: the sample being taken, in words; "" otherwise.
        round_number: present round, from 1.
        n_rounds: limit on rounds; a sweep ends earlier once everything is settled.
        elapsed_s, budget_s: time used and allowed, in seconds.
        n_context: tokens in the context that is measured.
        pinned: whether bound threads proved faster; None if not measured.
        notes: what could not be measured, and why, one line each.
        reasons: why each winner won, one or two sentences per phase; empty while the sweep runs.
        comparisons: of the requested memory options.
        preparing: the preparation in progress, in words; "" while measuring.
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

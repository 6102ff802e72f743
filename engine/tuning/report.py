"""What a sweep has found so far: small immutable records, for whoever shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.machine.topology import Cores
from engine.tuning.statistics import Interval

DECODE, PREFILL = "decode", "prefill"

COUNTS, PINNING, WEIGHTS, KV = "counts", "pinning", "weights", "kv"
"""What a sweep may be about; the last two compare ways of keeping something in memory."""

MEASURING, DONE, STOPPED, UNSURE = "measuring", "done", "stopped", "unsure"
"""States of a sweep. Unsure, with time or rounds used up, it still names a best."""


@dataclass(frozen=True)
class Point:
    """One thread count.

    Attributes:
        kind: what the last of its threads gets for itself: "core", "efficiency core" or "sibling".
        tps: tokens per second; None before it was measured.
        is_dropped: it was so much slower that it is measured no longer.
    """

    n_threads: int
    kind: str
    tps: Interval | None
    is_dropped: bool


@dataclass(frozen=True)
class Curve:
    """All thread counts for one of the two things the engine does.

    Attributes:
        phase: ``DECODE`` or ``PREFILL``.
        best: the count to use; None before anything was measured.
        fastest: the count of the highest median, which may win by no more than noise.
        gain: how many times faster ``fastest`` is than ``best``; None where they are the same.
        is_settled: whether going on would hardly change ``best``.
        n_tokens: tokens of one sample.
        pinned_gain: how many times faster the best count is with its threads bound to CPUs; None if not measured.
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
    """One way to keep something in memory.

    Attributes:
        own_bytes: of memory that it takes for itself.
        tps: tokens per second by phase, where it was measured.
        gain: how many times faster than the present option, by phase; nothing for the present one itself.
    """

    name: str
    own_bytes: int
    tps: Mapping[str, Interval] = field(default_factory=dict)
    gain: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Ways to keep weights, or keys and values, in memory, against the one in use.

    Attributes:
        part: ``WEIGHTS`` or ``KV``.
        present: the option in use.
        options: in order of the memory they take.
        best: the present one, unless another is faster in one phase and slower in none, beyond doubt.
        is_settled: whether going on would hardly change ``best``.
        n_context: tokens the measured steps attend to.
        estimate: what trying takes, known before.
        left_out: why it was not, or not wholly, measured; "" if it was.
        reason: a sentence about the outcome; "" before there is one.
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
        """Whether anything was."""
        return any(option.gain for option in self.options)

    def option(self, name: str) -> Option | None:
        """The option of a name."""
        return next((option for option in self.options if option.name == name), None)


@dataclass(frozen=True)
class TuningReport:
    """A sweep, running or over.

    Attributes:
        curves: by phase, those that can be measured.
        pinned: whether bound threads proved faster; None where that was not measured.
        round_number, n_rounds: of those there may be; it ends earlier once everything is settled.
        n_context: tokens the measured steps attend to.
        notes: what could not be measured, and why.
        reasons: why each winner won, one sentence or two per phase; empty while it runs.
        comparisons: of ways to keep things in memory, those that were asked for.
        preparing: what takes a while before something can be measured; "" while something is.
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
        """The comparison of one part."""
        return next((comparison for comparison in self.comparisons if comparison.part == part), None)

    def curve(self, phase: str) -> Curve | None:
        """The curve of one phase."""
        return next((curve for curve in self.curves if curve.phase == phase), None)

    def best(self, phase: str) -> int | None:
        """The best count of one phase."""
        curve = self.curve(phase)
        return curve.best if curve is not None else None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be measured."""
        return self.state != MEASURING

    @property
    def seconds_left(self) -> float:
        """The most it will still take."""
        return 0.0 if self.is_over else max(0.0, self.budget_s - self.elapsed_s)

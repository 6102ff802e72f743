"""What a sweep over thread counts has found so far: small immutable records, for whoever shows them."""

from __future__ import annotations

from dataclasses import dataclass

from engine.topology import Cores
from engine.tuning_statistics import Interval

DECODE, PREFILL = "decode", "prefill"

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
class TuningReport:
    """A sweep, running or over.

    Attributes:
        curves: by phase, those that can be measured.
        pinned: whether bound threads proved faster; None where that was not measured.
        round_number, n_rounds: of those there may be; it ends earlier once everything is settled.
        n_context: tokens the measured steps attend to.
        notes: what could not be measured, and why.
        reasons: why each winner won, one sentence or two per phase; empty while it runs.
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

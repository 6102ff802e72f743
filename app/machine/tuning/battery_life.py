"""The second goal of tuning, the longest battery: the thread count with the least energy per token.

Measured only where the machine tells its power: on battery the whole machine, on mains the
processor.
"""

from __future__ import annotations

from app.machine.tuning.thread_bars import BarLine, energy_bars
from app.text import figures
from app.text.glyphs import Glyphs
from app.text.record import record
from engine.tuning.statistics import Interval

MOST_COUNTS = 6
WORTH_SAVING = 0.05
"""Share of the energy per token that is worth a slower reply."""


@record
class EnergySample:
    """Energy and speed of one sample."""

    n_threads: int
    joules_per_token: float
    tps: float


@record
class EnergyRun:
    """Measurement of the energy per token with several thread counts."""

    counts: tuple[int, ...]
    samples: tuple[EnergySample, ...] = ()
    scope: str = ""
    """Measured part of the machine: "whole machine" or "processor"."""
    n_samples: int = 0
    """Number of samples at the end."""
    is_over: bool = False
    trouble: str = ""
    """Reason why nothing could be measured; empty if it could."""
    others_cores: float | None = None
    """Cores that other programs used meanwhile, if enough to matter; else None."""

    @property
    def is_reliable(self) -> bool:
        """Whether the result may be used."""
        return self.is_over and not self.trouble and self.others_cores is None

    def joules(self, n_threads: int) -> Interval | None:
        """Return the mean energy per token of a count, and its range; None if not measured."""
        values = [s.joules_per_token for s in self.samples if s.n_threads == n_threads]
        if not values:
            return None
        return Interval(sum(values) / len(values), min(values), max(values), len(values), False)

    def tps(self, n_threads: int) -> float:
        """Return the mean speed of a count; 0 if not measured."""
        values = [s.tps for s in self.samples if s.n_threads == n_threads]
        if not values:
            return 0.0
        return sum(values) / len(values)

    @property
    def fastest(self) -> int | None:
        """The fastest count; None before the first sample."""
        measured = [count for count in self.counts if self.tps(count)]
        return max(measured, key=self.tps, default=None)

    @property
    def thriftiest(self) -> int | None:
        """The count with certainly less energy per token than the fastest; the fastest itself if
        there is none; None before the first sample."""
        fastest = self.fastest
        base = self.joules(fastest) if fastest is not None else None
        best, best_joules = fastest, base
        for count in self.counts:
            joules = self.joules(count)
            if joules is None or base is None or best_joules is None:
                continue
            is_certain = joules.high < base.low
            is_worth_it = joules.median <= base.median * (1 - WORTH_SAVING)
            if is_certain and is_worth_it and joules.median < best_joules.median:
                best, best_joules = count, joules
        return best


def energy_counts(most: int, usual: int) -> tuple[int, ...]:
    """Return the thread counts to measure, in ascending order."""
    counts = {1, usual, most, *(1 << power for power in range(1, 10)), max(1, usual // 2)}
    possible = sorted(count for count in counts if count <= most)
    return tuple(possible[-MOST_COUNTS:])


def battery_headline(run: EnergyRun) -> str:
    """Return the result, such as "2 of 4 threads: 8 % slower, 35 % less energy per token"."""
    if run.trouble:
        return f"Energy cannot be measured: {run.trouble}"
    fastest, best = run.fastest, run.thriftiest
    joules = run.joules(fastest) if fastest is not None else None
    best_joules = run.joules(best) if best is not None else None
    if not run.is_over or fastest is None or best is None or joules is None or best_joules is None:
        return f"measuring energy: sample {len(run.samples) + 1} of {run.n_samples}"
    if run.others_cores is not None:
        return (
            f"Unreliable, because other programs used {run.others_cores:.1f} cores: measure again"
        )
    if best == fastest:
        text = figures.counted(best, "thread")
        return (
            f"{text} {'writes' if best == 1 else 'write'} fastest, and no other count surely "
            f"needs less energy per token ({figures.rate(joules.median)} J)"
        )
    slower = 100 * (1 - run.tps(best) / run.tps(fastest))
    less = 100 * (1 - best_joules.median / joules.median)
    return f"{best} of {fastest} threads: {slower:.0f} % slower, {less:.0f} % less energy per token"


def battery_bars(run: EnergyRun, in_use: int, columns: int, glyphs: Glyphs) -> list[BarLine]:
    """Return a bar for the energy per token of each count."""
    best = run.thriftiest if run.is_reliable else None
    return energy_bars(
        [(count, run.joules(count), run.tps(count)) for count in run.counts],
        best,
        in_use,
        columns,
        glyphs,
    )

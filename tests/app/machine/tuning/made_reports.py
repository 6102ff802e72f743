"""Reports of searches with figures written by hand."""

from __future__ import annotations

from app.machine.sensors.tuning_conditions import Conditions
from app.program.state import TunedChoice
from engine.machine.topology import Cores
from engine.tuning.report import Comparison, Curve, Option, Point, TuningReport
from engine.tuning.statistics import Interval

LAPTOP = Cores((0, 1, 2, 3), 2, None)
HYBRID = Cores((0, 1, 2, 3), 2, None, n_efficiency=2)
NOW = TunedChoice(2, 2, False, "mmap", "f16")
QUIET = Conditions(others_cores=0.0)
BUSY = Conditions(others_cores=1.0)
COPY_BYTES = 1_100_000_000


def interval(median: float, spread: float = 0.0, n: int = 12, is_sure: bool = True) -> Interval:
    return Interval(median, median - spread, median + spread, n, is_sure)


def curve(phase: str, speeds: dict[int, Interval], best: int, **changes: object) -> Curve:
    points = tuple(
        Point(n, LAPTOP.kind(n), tps, n in changes.get("dropped", ())) for n, tps in speeds.items()
    )
    is_settled = bool(changes.get("is_settled", True))
    pinned_gain = changes.get("pinned_gain")
    return Curve(phase, points, best, best, None, is_settled, 16, pinned_gain)


def weights(gain: Interval, best: str = "huge", is_settled: bool = True) -> Comparison:
    options = (
        Option("mmap", 0, {"decode": interval(24.6, 0.4), "prefill": interval(353.0)}),
        Option(
            "huge",
            COPY_BYTES,
            {"decode": interval(14.9, 2.0), "prefill": interval(353.0)},
            {"decode": gain, "prefill": interval(1.0)},
        ),
    )
    return Comparison("weights", "mmap", options, best, is_settled, 840, "a copy of 1.1 GB")


def report(
    writing: Curve | None = None,
    reading: Curve | None = None,
    comparison: Comparison | None = None,
    **changes: object,
) -> TuningReport:
    """Return a report; by default two threads are the best and huge pages 18 % faster."""
    writing = writing or curve("decode", {1: interval(14.7), 2: interval(26.4, 0.4)}, 2)
    reading = reading or curve("prefill", {1: interval(197.0), 2: interval(353.0)}, 2)
    comparison = comparison or weights(Interval(1.19, 1.08, 1.27, 6, True))
    values: dict[str, object] = {"state": "done", "elapsed_s": 38.0, **changes}
    return TuningReport(
        curves=(writing, reading),
        cores=LAPTOP,
        measuring="",
        round_number=6,
        n_rounds=6,
        budget_s=105.0,
        n_context=840,
        comparisons=(comparison,),
        **values,  # type: ignore[arg-type]
    )


SLOW_PAGES = weights(Interval(1.0, 0.98, 1.02, 6, True), "mmap")
"""Comparison in which huge pages brought nothing."""

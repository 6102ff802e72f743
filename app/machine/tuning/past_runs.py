"""The last search of each model on this machine, kept on disk for the F4 screen.

It is only convenience: a damaged file is ignored, and a failed write changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from app.machine.sensors.tuning_conditions import Conditions
from app.program.settings import MOST_THREADS
from app.program.small_file import JsonFile, checked
from app.program.state import WEIGHTS as WEIGHTS_MODES
from app.text.clean_text import clean_line
from app.text.record import record
from engine import KV_TYPES
from engine.tuning.report import (
    DECODE,
    DONE,
    KV,
    PREFILL,
    UNSURE,
    WEIGHTS,
    Comparison,
    Curve,
    TuningReport,
)
from engine.tuning.statistics import Interval

VERSION = 1
MOST_RUNS = 16
"""Limit on saved searches; the oldest are dropped."""
_MAX_FILE_BYTES = 1 << 18
_MOST_POINTS = 64
_MOST_TEXTS = 40
_MAX_TEXT_CHARS = 400
_LARGEST_TPS = 1e9
_LAST_UNIX_S = 32e9
"""Latest time that calendars can show safely."""


@record
class PastRun:
    """A finished search."""

    report: TuningReport
    conditions: Conditions
    finished_unix_s: float


class PastRuns:
    """File with the last search of each machine and model; without a path, nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._file = JsonFile(path, VERSION, _MAX_FILE_BYTES)

    def load(self, key: str) -> PastRun | None:
        """Return the last search; None if there is none, or it cannot be used."""
        try:
            run: PastRun = checked(PastRun, self._all().get(key))
        except ValueError:
            return None
        if not _is_sound(run):
            return None
        return replace(run, report=_with_clean_texts(run.report))

    def save(self, key: str, run: PastRun) -> None:
        """Save a finished search in place of the one before; one on a busy machine does not replace
        one on a quiet machine."""
        if run.report.state not in (DONE, UNSURE) or not run.report.curves:
            return
        earlier = self.load(key)
        if earlier is not None and earlier.conditions.is_quiet and not run.conditions.is_quiet:
            return
        others = [(name, value) for name, value in self._all().items() if name != key]
        runs: dict[str, Any] = dict([*others, (key, asdict(run))][-MOST_RUNS:])
        self._file.write(runs=runs)

    def _all(self) -> Mapping[str, Any]:
        runs = self._file.read().get("runs")
        if isinstance(runs, dict):
            return runs
        return {}


def _is_sound(run: PastRun) -> bool:
    report = run.report
    n_texts = len(report.notes) + len(report.reasons)
    return (
        0 <= run.finished_unix_s <= _LAST_UNIX_S
        and report.state in (DONE, UNSURE)
        and 0 <= report.elapsed_s < 1e6
        and n_texts <= _MOST_TEXTS
        and 1 <= len(report.curves) <= 2
        and all(map(_is_sound_curve, report.curves))
        and len(report.comparisons) <= 2
        and all(map(_is_sound_comparison, report.comparisons))
    )


def _is_sound_curve(curve: Curve) -> bool:
    counts = [point.n_threads for point in curve.points]
    return (
        curve.phase in (DECODE, PREFILL)
        and 1 <= len(counts) <= _MOST_POINTS
        and all(1 <= count <= MOST_THREADS for count in counts)
        and (curve.best is None or curve.best in counts)
        and all(point.kind in ("core", "efficiency core", "sibling") for point in curve.points)
        and all(_is_rate(point.tps) for point in curve.points if point.tps is not None)
        and all(_is_rate(gain) for gain in (curve.gain, curve.pinned_gain) if gain is not None)
    )


def _is_sound_comparison(comparison: Comparison) -> bool:
    names = [option.name for option in comparison.options]
    known = {WEIGHTS: WEIGHTS_MODES, KV: tuple(KV_TYPES)}.get(comparison.part, ())
    rates = [
        rate
        for option in comparison.options
        for rates_by_phase in (option.tps, option.gain)
        for rate in rates_by_phase.values()
    ]
    return (
        1 <= len(names) <= 8
        and all(name and name in known for name in names)
        and comparison.best in names
        and comparison.present in names
        and all(map(_is_rate, rates))
    )


def _is_rate(interval: Interval) -> bool:
    edges = (interval.low, interval.median, interval.high)
    return all(math.isfinite(edge) and 0 < edge < _LARGEST_TPS for edge in edges)


def _with_clean_texts(report: TuningReport) -> TuningReport:
    comparisons = tuple(
        replace(
            comparison,
            estimate=_clean(comparison.estimate),
            left_out=_clean(comparison.left_out),
            reason=_clean(comparison.reason),
        )
        for comparison in report.comparisons
    )
    return replace(
        report,
        comparisons=comparisons,
        notes=tuple(map(_clean, report.notes)),
        reasons=tuple(map(_clean, report.reasons)),
        measuring="",
        preparing="",
    )


def _clean(text: str) -> str:
    return clean_line(text, _MAX_TEXT_CHARS)

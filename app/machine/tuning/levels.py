"""Speeds of a search on one level, so that all figures of a screen agree.

Settings are compared in turn, as ratios, while the machine drifts: two threads may write 26.4
tokens per second in the first step and 24.6 in the last. Here all speeds get the level of the
last step, and memory options the speed of the present one times their measured gain.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from app.program.state import TunedChoice
from engine.tuning.report import DECODE, WEIGHTS

if TYPE_CHECKING:
    from engine.tuning.report import Comparison, Curve, Option, Point, TuningReport
    from engine.tuning.statistics import Interval


def leveled(report: TuningReport) -> TuningReport:
    """Return a report with all speeds on the level of its last step, without pinned threads."""
    for curve in report.curves:
        factors = _level_factors(report, curve)
        if factors is not None:
            report = _with_factors(report, curve.phase, *factors)
    comparisons = tuple(_with_gains(item) for item in report.comparisons)
    return replace(report, comparisons=comparisons)


def with_choice(report: TuningReport, choice: TunedChoice) -> TuningReport:
    """Return a report with the speeds that its counts and options have with the memory mode and
    the pinning of a choice."""
    for curve in report.curves:
        pin_factor = _pin_factor(curve, choice.pinned)
        curve_factor = pin_factor * _weights_factor(report, curve.phase, choice.weights)
        report = _with_factors(report, curve.phase, curve_factor, pin_factor)
    return report


def speed_of(report: TuningReport, phase: str, choice: TunedChoice) -> float:
    """Return the speed of a choice in tokens per second, by a report that is on one level; 0 if it
    was not measured."""
    curve = report.curve(phase)
    count = choice.decode if phase == DECODE else choice.prefill
    point = curve.point(count) if curve is not None else None
    if curve is None or point is None or point.tps is None:
        return 0.0
    factor = _pin_factor(curve, choice.pinned) * _weights_factor(report, phase, choice.weights)
    return point.tps.median * factor


def _level_factors(report: TuningReport, curve: Curve) -> tuple[float, float] | None:
    """Return the factors that bring counts and memory modes of a phase to one level.

    Memory modes are measured with the best count, pinned if that proved faster. None if they were
    not measured, or are on one level already.
    """
    comparison = report.comparison(WEIGHTS)
    best = curve.point(curve.best) if curve.best is not None else None
    if comparison is None or not comparison.is_measured or best is None or best.tps is None:
        return None
    present = comparison.option(comparison.present)
    present_tps = present.tps.get(curve.phase) if present is not None else None
    if present_tps is None or math.isclose(present_tps.median, best.tps.median):
        return None
    option_factor = 1 / _pin_factor(curve, bool(report.pinned))
    return option_factor * present_tps.median / best.tps.median, option_factor


def _with_factors(
    report: TuningReport, phase: str, curve_factor: float, option_factor: float
) -> TuningReport:
    """Multiply the speeds of counts and of memory modes in one phase."""
    curves = tuple(
        replace(curve, points=tuple(_scaled_point(point, curve_factor) for point in curve.points))
        if curve.phase == phase
        else curve
        for curve in report.curves
    )
    comparisons = tuple(
        replace(
            item, options=tuple(_scaled_option(one, phase, option_factor) for one in item.options)
        )
        if item.part == WEIGHTS
        else item
        for item in report.comparisons
    )
    return replace(report, curves=curves, comparisons=comparisons)


def _scaled_point(point: Point, factor: float) -> Point:
    if point.tps is None:
        return point
    return replace(point, tps=_scaled(point.tps, factor))


def _scaled_option(option: Option, phase: str, factor: float) -> Option:
    if phase not in option.tps:
        return option
    return replace(option, tps={**option.tps, phase: _scaled(option.tps[phase], factor)})


def _with_gains(comparison: Comparison) -> Comparison:
    """Give each option the speed of the present one times its gain."""
    present = comparison.option(comparison.present)
    if present is None:
        return comparison
    options = []
    for option in comparison.options:
        tps = dict(option.tps)
        for phase, gain in option.gain.items():
            if phase in present.tps:
                tps[phase] = _scaled(gain, present.tps[phase].median)
        options.append(replace(option, tps=tps))
    return replace(comparison, options=tuple(options))


def _pin_factor(curve: Curve, pinned: bool) -> float:
    if not pinned or curve.pinned_gain is None:
        return 1.0
    return curve.pinned_gain.median


def _weights_factor(report: TuningReport, phase: str, mode: str) -> float:
    comparison = report.comparison(WEIGHTS)
    option = comparison.option(mode) if comparison is not None else None
    if option is None or phase not in option.gain:
        return 1.0
    return option.gain[phase].median


def _scaled(interval: Interval, factor: float) -> Interval:
    return replace(
        interval,
        median=interval.median * factor,
        low=interval.low * factor,
        high=interval.high * factor,
    )

"""From what a search found to what is chosen: the best of each part, and the circumstances that are remembered with it.

Takes an ``engine.tuning.report.TuningReport`` and imports no engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.machine.tuning_conditions import Conditions
from app.program.state import Measured, TunedChoice

if TYPE_CHECKING:
    from engine.tuning.report import TuningReport


def best_choice(report: TuningReport, now: TunedChoice) -> TunedChoice:
    """Return the best of what was measured, and what holds now for the rest."""
    return TunedChoice(
        decode=report.best("decode") or now.decode,
        prefill=report.best("prefill") or now.prefill,
        pinned=now.pinned if report.pinned is None else report.pinned,
        weights=_best_option(report, "weights") or now.weights,
        kv_type=_best_option(report, "kv") or now.kv_type,
    )


def choice_to_remember(report: TuningReport, now: TunedChoice, remembered: TunedChoice | None) -> TunedChoice:
    """Return this choice; fields that were not measured keep their remembered value, whatever the settings say."""
    best = best_choice(report, now)
    return TunedChoice(
        best.decode,
        best.prefill,
        best.pinned,
        _best_option(report, "weights") or (remembered.weights if remembered is not None else ""),
        _best_option(report, "kv") or (remembered.kv_type if remembered is not None else ""),
    )


def measured_of(report: TuningReport, choice: TunedChoice, conditions: Conditions, kernels: str) -> Measured | None:
    """Return under which circumstances a choice was measured; None if it was not, but made by hand."""
    curve = report.curve("decode")
    point = curve.point(choice.decode) if curve is not None else None
    return Measured(kernels, conditions.on_battery) if point is not None and point.tps is not None else None


def _best_option(report: TuningReport, part: str) -> str:
    comparison = report.comparison(part)
    return comparison.best if comparison is not None and comparison.is_measured else ""

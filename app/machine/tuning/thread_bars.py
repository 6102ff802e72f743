"""Results of tuning as plain text, for the command line and the screen.

Thread counts are bars: the solid part is the speed, the shaded end its uncertainty. Memory modes and cache
types are rows with gains over the mode in use. No engine is imported, and colour only repeats the
text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from app.text import figures
from app.text.glyphs import Glyphs
from app.text.record import record

if TYPE_CHECKING:
    from engine.tuning.lookahead_trials import Lookahead
    from engine.tuning.report import Comparison as Comparison
    from engine.tuning.report import Curve as Curve
    from engine.tuning.report import Option, Point
    from engine.tuning.report import TuningReport as TuningReport

_FIXED_CELLS = 12
"""Cells of a row besides the bar, the rate and its spread: mark, count, blanks and label."""
_LEAST_RATE_CELLS = 5
_LEAST_BAR_CELLS = 3
_KINDS = {
    "core": "physical cores",
    "efficiency core": "and efficiency cores",
    "sibling": "and siblings",
}
TITLES = {"decode": "writing, tok/s", "prefill": "reading the prompt, tok/s"}


class CurveRole(Enum):
    """Role of a line, which decides its colour."""

    HEADING = "heading"
    KIND = "kind"
    PLAIN = "plain"
    BEST = "best"
    CLOSE = "close"
    DROPPED = "dropped"


@record
class BarLine:
    """A line of a curve."""

    text: str
    role: CurveRole


def curve_lines(curve: Curve, in_use: int | None, columns: int, glyphs: Glyphs) -> list[BarLine]:
    """Return the lines of a curve, with counts grouped by the kind of core of their last thread."""
    rates = {point.n_threads: _rate(point, glyphs) for point in curve.points}
    wide = [
        max([_LEAST_RATE_CELLS, *(len(texts[index]) for texts in rates.values())])
        for index in (0, 1)
    ]
    close = curve.close_counts
    cells = max(_LEAST_BAR_CELLS, columns - _FIXED_CELLS - bool(close) - sum(wide))
    most_tps = max((point.tps.high for point in curve.points if point.tps is not None), default=0.0)

    def drawn(point: Point) -> BarLine:
        head = f"{glyphs.here if point.n_threads == in_use else ' '}{point.n_threads:>3} "
        median, spread = rates[point.n_threads]
        role, label = _judged(point, curve.best, close)
        text = (
            f"{head}{_bar(point, cells, most_tps, glyphs)} {median:>{wide[0]}} "
            f"{spread:<{wide[1]}} {label}"
        )
        return BarLine(text.rstrip(), role)

    core_kinds = list(dict.fromkeys(point.kind for point in curve.points))
    lines = []
    for core_kind in core_kinds:
        if len(core_kinds) > 1:
            lines.append(BarLine(f"   {_KINDS[core_kind]}", CurveRole.KIND))
        lines += [drawn(point) for point in curve.points if point.kind == core_kind]
    return lines


def _rate(point: Point, glyphs: Glyphs) -> tuple[str, str]:
    """Return rate and spread as text; "-" and "" before a measurement."""
    if point.tps is None:
        return "-", ""
    median = figures.rate(point.tps.median)
    decimals = len(median.partition(".")[2])
    return median, f"{glyphs.plus_minus}{point.tps.half_width:,.{decimals}f}"


def _judged(point: Point, best: int | None, close: Sequence[int]) -> tuple[CurveRole, str]:
    if point.tps is None:
        return CurveRole.PLAIN, ""
    if point.n_threads in close:
        return CurveRole.CLOSE, "close"
    if point.n_threads == best:
        return CurveRole.BEST, "best"
    if point.is_dropped:
        return (CurveRole.DROPPED, "slow")
    return (CurveRole.PLAIN, "")


def _bar(point: Point, cells: int, most_tps: float, glyphs: Glyphs) -> str:
    if point.tps is None:
        return " " * cells
    mean, high = (
        max(0, round(cells * edge / most_tps)) if most_tps > 0 else 0
        for edge in (point.tps.median, point.tps.high)
    )
    return f"{glyphs.full * mean}{glyphs.spread * (high - mean)}".ljust(cells)


def pinning_line(report: TuningReport) -> str:
    """Return a line about binding threads to CPUs; "" if that was not measured."""
    gains = [
        f"{curve.best} threads {'writing' if curve.phase == 'decode' else 'reading'} "
        f"{_percent(curve.pinned_gain.median):+.0f} % "
        f"({_percent(curve.pinned_gain.low):.0f} to {_percent(curve.pinned_gain.high):.0f})"
        for curve in report.curves
        if curve.pinned_gain is not None
    ]
    if not gains:
        return ""
    if report.pinned is None:
        verdict = ""
    elif report.pinned:
        verdict = ": faster"
    else:
        verdict = ": no real gain"
    return f"Each thread fixed to one core: {', '.join(gains)}{verdict if report.is_over else ''}"


def _percent(ratio: float) -> float:
    return 100 * (ratio - 1)


def progress_text(report: TuningReport) -> str:
    """Describe the progress of the search, or its end."""
    if report.is_over and not report.curves:
        return "nothing was measured"
    if report.is_over:
        took = figures.whole_seconds(report.elapsed_s)
        return {
            "done": f"Done in {took}",
            "stopped": "Stopped: these are the results so far",
            "unsure": f"Done in {took}. Some results are uncertain",
        }.get(report.state, report.state)
    if report.preparing:
        return f"{report.preparing} · at most {figures.whole_seconds(report.seconds_left)} left"
    if not report.measuring:
        return "warming up"
    measuring = report.measuring.replace("decode", "writing").replace("prefill", "reading")
    left_text = figures.whole_seconds(report.seconds_left)
    return (
        f"round {report.round_number} of {report.n_rounds} · {measuring} · at most {left_text} left"
    )


_PHASES = ("decode", "prefill")
_CELL = 19
"""Columns of a phase: rate, spread and gain."""


def option_lines(comparison: Comparison, in_use: str, glyphs: Glyphs) -> list[BarLine]:
    """Return the lines of a comparison: heading, cost, and a line for each measured mode."""
    if comparison.part == "weights":
        title = "weights"
    else:
        title = "KV cache"
    lines = [
        BarLine(
            f" {title:<9}{'writing':<{_CELL}}{'reading, tok/s':<{_CELL}}".rstrip(),
            CurveRole.HEADING,
        )
    ]
    if not any(option.tps for option in comparison.options):
        return [
            *lines,
            BarLine(f"   {comparison.left_out or comparison.estimate}", CurveRole.PLAIN),
        ]
    lines += [_option_line(option, comparison, in_use, glyphs) for option in comparison.options]
    if comparison.left_out:
        lines.append(BarLine(f"   {comparison.left_out}", CurveRole.PLAIN))
    return lines


def _option_line(option: Option, comparison: Comparison, in_use: str, glyphs: Glyphs) -> BarLine:
    if option.name == in_use:
        mark = glyphs.here
    else:
        mark = " "
    cells = "".join(f"{_cell(option, phase, glyphs):<{_CELL}}" for phase in _PHASES)
    text = f"{mark} {option.name:<8}{cells}"
    if option.name == comparison.best and comparison.is_measured:
        return BarLine(f"{text}best", CurveRole.BEST)
    return BarLine(text.rstrip(), CurveRole.PLAIN)


def _cell(option: Option, phase: str, glyphs: Glyphs) -> str:
    tps = option.tps.get(phase)
    gain = option.gain.get(phase)
    if tps is None:
        return "-"
    median = figures.rate(tps.median)
    decimals = len(median.partition(".")[2])
    rate_text = f"{median:>5} {glyphs.plus_minus}{tps.half_width:.{decimals}f}"
    if gain is not None:
        return f"{rate_text:<11} {100 * (gain.median - 1):+.0f} %"
    return rate_text


def lookahead_lines(lookaheads: Mapping[str, Lookahead]) -> list[str]:
    """Return a line for each weight type."""
    lines = []
    for quant, lookahead in lookaheads.items():
        is_usual = lookahead.gbps <= lookahead.usual_gbps
        if is_usual:
            comparison = f", as usual: {lookahead.gbps:.1f}"
        else:
            comparison = f": {lookahead.gbps:.1f} instead of {lookahead.usual_gbps:.1f}"
        lines.append(f"{quant}: {lookahead.words}{comparison} GB/s")
    return lines

"""Results of tuning as plain text, for the command line and the screen.

Thread counts, memory modes and cache types are bars that end at the speed, with a whisker for its
uncertainty. No engine is imported, and colour only repeats the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from app.machine.tuning.levels import with_choice
from app.program.state import TunedChoice
from app.text import figures
from app.text.glyphs import Glyphs
from app.text.record import record
from engine.tuning.statistics import GAIN

if TYPE_CHECKING:
    from engine.tuning.lookahead_trials import Lookahead
    from engine.tuning.report import Comparison as Comparison
    from engine.tuning.report import Curve as Curve
    from engine.tuning.report import Point
    from engine.tuning.report import TuningReport as TuningReport
    from engine.tuning.statistics import Interval

_HEAD_CELLS = 5
"""Cells before the bar of a thread count: mark, count and a blank."""
_BLANKS = 3
"""Blanks between bar, rate, spread and label."""
_LEAST_RATE_CELLS = 5
_LEAST_BAR_CELLS = 3
_KINDS = {
    "core": "physical cores",
    "efficiency core": "and efficiency cores",
    "sibling": "and siblings",
}
TITLES = {"decode": "writing, tok/s", "prefill": "reading the prompt, tok/s"}
OPTION_TITLES = {"weights": "weights", "kv": "KV cache"}
_OPTION_NAMES = {"mmap": "mapped file", "huge": "huge pages"}
MEANINGS = {
    "weights": "mapped file: the file's own pages; huge pages: a copy in pages of 2 MB",
    "kv": "KV cache: what the model keeps in memory of the conversation",
}
"""Names of a comparison in plain words."""


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


@record
class _Bar:
    """A row of a chart, before it is drawn."""

    name: str
    tps: Interval | None
    label: str
    role: CurveRole
    gain: str = ""


def curve_lines(curve: Curve, in_use: int | None, columns: int, glyphs: Glyphs) -> list[BarLine]:
    """Return the lines of a curve, with counts grouped by the kind of core of their last thread."""
    rows = []
    for point in curve.points:
        mark = glyphs.here if point.n_threads == in_use else " "
        role, label = _judged(point, curve)
        rows.append(_Bar(f"{mark}{point.n_threads:>3} ", point.tps, label, role))
    drawn = _drawn(rows, columns, glyphs)

    core_kinds = list(dict.fromkeys(point.kind for point in curve.points))
    lines = []
    for core_kind in core_kinds:
        if len(core_kinds) > 1:
            lines.append(BarLine(f"   {_KINDS[core_kind]}", CurveRole.KIND))
        lines += [
            bar_line
            for bar_line, point in zip(drawn, curve.points, strict=True)
            if point.kind == core_kind
        ]
    return lines


def option_lines(
    comparison: Comparison, phase: str, in_use: str, columns: int, glyphs: Glyphs
) -> list[BarLine]:
    """Return the bars of memory options in one phase; empty if none was measured."""
    if not any(phase in option.tps for option in comparison.options):
        return []
    rows = []
    for option in comparison.options:
        mark = glyphs.here if option.name == in_use else " "
        name = option_name(option.name)
        gain = option.gain.get(phase)
        role, label = _judged_option(option.name, comparison)
        gain_text = f"{_percent(gain.median):+.0f} %" if gain is not None else ""
        rows.append(_Bar(f"{mark} {name:<11} ", option.tps.get(phase), label, role, gain_text))
    return _drawn(rows, columns, glyphs)


def _judged_option(name: str, comparison: Comparison) -> tuple[CurveRole, str]:
    """Return the role and the label of an option; the present one stays while it is close."""
    if not comparison.is_measured:
        return CurveRole.PLAIN, ""
    if comparison.is_settled and name == comparison.best:
        return CurveRole.BEST, "best"
    if comparison.is_settled:
        return CurveRole.PLAIN, ""
    if comparison.best == comparison.present:
        return CurveRole.CLOSE, "close"
    if name == comparison.best:
        return CurveRole.CLOSE, "lead"
    return CurveRole.PLAIN, ""


def energy_bars(
    points: Sequence[tuple[int, Interval | None, float]],
    best: int | None,
    in_use: int,
    columns: int,
    glyphs: Glyphs,
) -> list[BarLine]:
    """Return bars of the energy per token, each with its speed.

    Args:
        points: thread count, joules per token and tokens per second.
        best: count of the least energy; None if it is not known yet.
    """
    rows = []
    for count, joules, tps in points:
        mark = glyphs.here if count == in_use else " "
        speed = f"{figures.rate(tps)} tok/s" if tps else ""
        role, label = (CurveRole.BEST, "best") if count == best else (CurveRole.PLAIN, "")
        rows.append(_Bar(f"{mark}{count:>3} ", joules, label, role, speed))
    return _drawn(rows, columns, glyphs)


def chart_lines(
    report: TuningReport, in_use: TunedChoice, columns: int, glyphs: Glyphs
) -> list[tuple[str, list[BarLine]]]:
    """Return title and bars of each chart of a report, for one column of text."""
    report = with_choice(report, in_use)
    counts = {"decode": in_use.decode, "prefill": in_use.prefill}
    charts = [
        (TITLES[curve.phase], curve_lines(curve, counts[curve.phase], columns, glyphs))
        for curve in report.curves
    ]
    options = {"weights": in_use.weights, "kv": in_use.kv_type}
    for comparison in report.comparisons:
        option = options[comparison.part]
        title = f"{OPTION_TITLES[comparison.part]} with {counts_text(report)}"
        for phase, task in TITLES.items():
            lines = option_lines(comparison, phase, option, columns, glyphs)
            if lines:
                charts.append((f"{title}: {task}", lines))
    return charts


def counts_text(report: TuningReport) -> str:
    """Return the thread counts with which memory options were measured."""
    counts = sorted({curve.best for curve in report.curves if curve.best is not None})
    if len(counts) == 1:
        return figures.counted(counts[0], "thread")
    return f"{' and '.join(map(str, counts)) or 'the usual'} threads"


def option_name(name: str) -> str:
    """Return a memory option in plain words."""
    return _OPTION_NAMES.get(name, name)


def _drawn(rows: Sequence[_Bar], columns: int, glyphs: Glyphs) -> list[BarLine]:
    """Draw the rows of a chart on one scale; spread and gain are left out if the width is short."""
    rates = [_rate(row.tps, glyphs) for row in rows]
    wide = [max([_LEAST_RATE_CELLS, *(len(texts[index]) for texts in rates)]) for index in (0, 1)]
    head = max((len(row.name) for row in rows), default=_HEAD_CELLS)
    label_cells = max(len("best"), *(len(row.label) for row in rows)) if rows else 0
    gain_cells = max((len(row.gain) for row in rows), default=0)
    cells = columns - head - _BLANKS - label_cells - sum(wide) - gain_cells - bool(gain_cells)
    has_spread = cells >= _LEAST_BAR_CELLS or not gain_cells
    if not has_spread:
        cells += wide[1] + 1
    cells = max(_LEAST_BAR_CELLS, cells)
    most_tps = max((row.tps.high for row in rows if row.tps is not None), default=0.0)
    lines = []
    for row, (rate, spread) in zip(rows, rates, strict=True):
        text = f"{row.name}{_bar(row.tps, cells, most_tps, glyphs)} {rate:>{wide[0]}} "
        if has_spread:
            text += f"{spread:<{wide[1]}} "
        if gain_cells:
            text += f"{row.gain:>{gain_cells}} "
        lines.append(BarLine(f"{text}{row.label}".rstrip(), row.role))
    return lines


def _rate(tps: Interval | None, glyphs: Glyphs) -> tuple[str, str]:
    """Return rate and spread as text; "-" before a measurement, no spread after only one."""
    if tps is None:
        return "-", ""
    median = figures.rate(tps.median)
    if tps.n < 2:
        return median, ""
    decimals = len(median.partition(".")[2])
    return median, f"{glyphs.plus_minus}{tps.half_width:,.{decimals}f}"


def _judged(point: Point, curve: Curve) -> tuple[CurveRole, str]:
    """Return the role and the label of a count; none is the best while some are too close."""
    is_best = point.n_threads == curve.best
    if point.tps is None:
        return CurveRole.PLAIN, ""
    if is_best and curve.is_settled:
        return CurveRole.BEST, "best"
    if point.n_threads in curve.close_counts:
        return CurveRole.CLOSE, "close"
    if is_best:
        return CurveRole.CLOSE, "lead"
    if point.is_dropped:
        return CurveRole.DROPPED, "slow"
    return CurveRole.PLAIN, ""


def _bar(tps: Interval | None, cells: int, most_tps: float, glyphs: Glyphs) -> str:
    """Draw a speed as a bar that ends at the median, with a whisker to the upper end."""
    if tps is None or most_tps <= 0:
        return " " * cells
    median, high = (max(0, round(cells * edge / most_tps)) for edge in (tps.median, tps.high))
    whisker = ""
    if high > median:
        whisker = f"{glyphs.spread * (high - median - 1)}{glyphs.spread_end}"
    return f"{glyphs.full * median}{whisker}".ljust(cells)


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
    verdict = f": {pinning_verdict(report)}"
    return f"Each thread fixed to one core: {', '.join(gains)}{verdict if report.is_over else ''}"


def pinning_verdict(report: TuningReport) -> str:
    """Return whether threads that are fixed to cores are faster, in words; "" if unknown."""
    if report.pinned is None:
        return ""
    if report.pinned:
        return "faster"
    gains = [curve.pinned_gain for curve in report.curves if curve.pinned_gain is not None]
    if any(gain.low <= 1 <= gain.high and gain.median > GAIN for gain in gains):
        return "too close to call"
    return "no real gain"


def _percent(ratio: float) -> float:
    return 100 * (ratio - 1)


def progress_text(report: TuningReport) -> str:
    """Describe the progress of the search, or its end; "" for a complete one of an earlier run."""
    if report.is_over and not report.curves:
        return "nothing was measured"
    if report.is_over and not report.elapsed_s:
        return "Some results are uncertain" if report.state == "unsure" else ""
    if report.is_over:
        took = figures.whole_seconds(report.elapsed_s)
        return {
            "done": f"Done in {took}",
            "stopped": "Stopped: these are the results so far",
            "unsure": f"Done in {took}. Some results are uncertain",
        }.get(report.state, report.state)
    left_text = _time_left(report)
    if report.preparing:
        return f"{report.preparing} · {left_text}"
    if not report.measuring:
        return "warming up"
    measuring = report.measuring.replace("decode", "writing").replace("prefill", "reading")
    for name, words in _OPTION_NAMES.items():
        measuring = measuring.replace(name, words)
    return f"round {report.round_number} of {report.n_rounds} · {measuring} · {left_text}"


def _time_left(report: TuningReport) -> str:
    """Return the time left, in words: a limit, and what is likely if that is known."""
    most_s = report.seconds_left
    if not 0 < report.expected_left_s < 0.8 * most_s:
        return f"at most {figures.whole_seconds(most_s)} left"
    return (
        f"about {figures.whole_seconds(report.expected_left_s)} left, at most "
        f"{figures.whole_seconds(most_s)}"
    )


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

"""Widgets and panels of the threads screen: curves, memory modes, steps and the machine."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.machine.tuning.findings import kernel_texts
from app.machine.tuning.thread_bars import (
    MEANINGS,
    OPTION_TITLES,
    TITLES,
    BarLine,
    CurveRole,
    curve_lines,
    option_lines,
    option_name,
    pinning_verdict,
)
from app.text.glyphs import BLOCKS, Glyphs, choose_glyphs
from app.tui.drawing.lines import EMPTY, Line, Span, SpanRole, fitted, line, muted
from app.tui.drawing.panels import (
    FRAME_COLUMNS,
    FRAME_ROWS,
    aired,
    divided,
    gauge,
    panel,
    side_by_side,
)
from app.tui.speed.machine_lines import cores_panel, memory_panel
from app.tui.speed.watch import PerformanceView
from app.tui.widgets.figure_lines import FigureLines

if TYPE_CHECKING:
    from app.machine.tuning.thread_bars import Comparison, Curve, TuningReport

_ROLES = {
    CurveRole.PLAIN: SpanRole.PLAIN,
    CurveRole.BEST: SpanRole.GOOD,
    CurveRole.CLOSE: SpanRole.GOOD,
}
"""Roles of lines; all other lines are muted."""
_NAME_COLUMNS = 10
_PHASE_ROLES = {"decode": SpanRole.WRITING, "prefill": SpanRole.READING}
LEAST_ROWS = 9
"""Minimum height of the panels with steps and machine."""
_RESULT_COLUMNS = 12
_CLOSE = "close"
"""Result of a step that is too close to call."""
_LEADS = " leads"
"""End of a result that more samples may change."""
_STEP_NAMES = (
    "threads for writing",
    "threads for reading the prompt",
    "each thread fixed to one core",
    "memory of the weights",
    "memory prefetch",
    "KV cache type (k)",
)


class ThreadCurve(FigureLines):
    """Panel with the curve of one phase, redrawn only when it changes."""

    def __init__(self, phase: str, id: str | None = None) -> None:
        super().__init__(id=id)
        self._phase = phase

    def set_content(
        self,
        curve: Curve | None,
        in_use: int,
        usual: str,
        digits_hint: str,
        max_count: int,
        thickness: int,
    ) -> None:
        """Show a curve, or empty rows before anything is measured.

        Args:
            in_use: the count in use, which is marked.
            usual: usual speed with the threads in use; empty if unknown.
            digits_hint: keys that set the count of this phase; empty if they set the other one.
            max_count: counts up to this one have an empty row before they are measured; 0 shows
                only the count in use.
            thickness: rows of a bar; bars of several rows have a blank row between them.
        """
        glyphs = choose_glyphs()
        colour = _PHASE_ROLES[self._phase]
        name = TITLES[self._phase].capitalize()
        frame = SpanRole.FRAME
        foot = EMPTY
        if digits_hint:
            frame = colour
            foot = line(muted(digits_hint))

        def draw(width: int) -> list[Line]:
            columns = max(1, width - FRAME_COLUMNS)
            if curve is None:
                counts = range(1, max_count + 1) if max_count else (in_use,)
                body = [_unmeasured(count, in_use, usual, columns, glyphs) for count in counts]
            else:
                body = [
                    coloured(bar_line, colour, glyphs)
                    for bar_line in curve_lines(curve, in_use, columns, glyphs)
                ]
            return panel(
                name, _thickened(body, thickness, glyphs), width, glyphs, foot=foot, frame=frame
            )

        self.follow(draw)


def n_rows(curve: Curve | None, max_count: int, thickness: int) -> int:
    """Return the rows of a complete curve without its frame."""
    n_headings = 0
    n_lines = max(1, max_count)
    if curve is not None:
        bar_lines = curve_lines(curve, None, 40, BLOCKS)
        n_headings = sum(bar_line.role is CurveRole.KIND for bar_line in bar_lines)
        n_lines = len(bar_lines) or n_lines
    if thickness <= 1:
        return n_lines
    return 2 * n_lines - 1 + (thickness - 1) * (n_lines - n_headings)


def _thickened(body: list[Line], thickness: int, glyphs: Glyphs) -> list[Line]:
    if thickness <= 1:
        return body
    thickened: list[Line] = []
    for row in body:
        is_bar = [set(span.text) == {glyphs.full} for span in row]
        bar = tuple(
            span if is_filled else Span(" " * len(span.text))
            for span, is_filled in zip(row, is_bar, strict=True)
        )
        is_heading = len(row) == 1 and row[0].role is SpanRole.MUTED
        if thickened:
            thickened.append(EMPTY)
        thickened.append(row)
        if not is_heading:
            thickened += [bar] * (thickness - 1)
    return thickened


def _unmeasured(count: int, in_use: int, usual: str, columns: int, glyphs: Glyphs) -> Line:
    if count == in_use and usual:
        return (
            Span(f"{glyphs.here}{count:>3} ", SpanRole.STRONG),
            Span(f"in use, {usual}"),
        )
    if count == in_use:
        return (
            Span(f"{glyphs.here}{count:>3} ", SpanRole.STRONG),
            Span("in use, "),
            muted("not measured"),
        )
    return (
        Span(f" {count:>3} ", SpanRole.STRONG),
        *gauge(0.0, max(1, columns - _NAME_COLUMNS), glyphs),
    )


def coloured(bar_line: BarLine, bar_role: SpanRole, glyphs: Glyphs) -> Line:
    """Return a line with its bar in the colour of the phase and its whisker muted."""
    role = _ROLES.get(bar_line.role, SpanRole.MUTED)
    full, spread, end = map(re.escape, (glyphs.full, glyphs.spread, glyphs.spread_end))
    if role is SpanRole.MUTED:
        bar_role = role
    spans = []
    for text in filter(None, re.split(f"([{full}]+|{spread}*{end})", bar_line.text)):
        if set(text) == {glyphs.full}:
            spans.append(Span(text, bar_role))
        elif text[-1] == glyphs.spread_end:
            spans.append(Span(text, SpanRole.MUTED))
        else:
            spans.append(Span(text, role))
    return tuple(spans)


_LEAST_HALF = 34
"""Columns that the bars of one phase need next to those of the other."""


def option_panels(
    comparisons: Sequence[tuple[Comparison, str]], counts: str, glyphs: Glyphs, width: int
) -> list[Line]:
    """Draw comparisons of options as bars, each with the option in use marked.

    Args:
        counts: the thread counts with which they were measured, in words.
    """
    lines: list[Line] = []
    columns = max(20, width - FRAME_COLUMNS)
    for comparison, in_use in comparisons:
        title = OPTION_TITLES[comparison.part]
        title = f"{title[:1].upper()}{title[1:]}, tok/s with {counts}"
        foot = line(muted(MEANINGS[comparison.part]))
        body = _option_bars(comparison, in_use, columns, glyphs)
        missing = comparison.left_out
        if not body:
            title = title.partition(",")[0]
            missing = missing or comparison.estimate
            foot = EMPTY
        body += [line(text) for text in textwrap.wrap(missing, columns)]
        lines += panel(title, body, width, glyphs, foot=foot)
    return lines


def _option_bars(comparison: Comparison, in_use: str, columns: int, glyphs: Glyphs) -> list[Line]:
    """Draw the bars of both phases, side by side if there is room."""
    n_columns = 2 if columns >= 2 * _LEAST_HALF else 1
    widths = divided(columns, n_columns)
    blocks = []
    for phase, role in _PHASE_ROLES.items():
        rows = option_lines(comparison, phase, in_use, widths[-1] - 1, glyphs)
        if rows:
            task = line(muted(f"  {TITLES[phase].partition(',')[0]}"))
            blocks.append([task, *(coloured(row, role, glyphs) for row in rows)])
    if n_columns == 1 or len(blocks) < 2:
        return [row for block in blocks for row in block]
    return side_by_side(blocks, widths)


def room_lines(
    view: PerformanceView,
    report: TuningReport | None,
    is_trusted: bool,
    width: int,
    height: int,
    glyphs: Glyphs,
) -> list[Line]:
    """Fill ``height`` rows with the steps of the search and the state of the machine."""
    steps = step_lines(report, is_trusted, glyphs)
    widths = divided(width, 2)
    memory_rows = min(
        len(memory_panel(view, glyphs, widths[1], 0)), height - len(steps) - FRAME_ROWS
    )
    if memory_rows > FRAME_ROWS:
        memory = memory_panel(view, glyphs, widths[0], memory_rows)
    else:
        memory = []
    rows = height - len(memory)
    body = [fitted(one, widths[0] - FRAME_COLUMNS) for one in aired(steps, rows)]
    searched = panel("Steps", body, widths[0], glyphs, rows)
    return side_by_side(
        [[*searched, *memory], cores_panel(view, glyphs, widths[1], height)], widths
    )


def step_lines(report: TuningReport | None, is_trusted: bool, glyphs: Glyphs) -> list[Line]:
    """Return a line for each step of the search: whether it is done, its result and its name.

    Args:
        is_trusted: whether the results may be saved.
    """
    results = [""] * len(_STEP_NAMES)
    if report is not None:
        results = _results(report)
    lines = []
    for step, result in zip(_STEP_NAMES, results, strict=True):
        is_certain = result != _CLOSE and not result.endswith(_LEADS)
        if result and is_trusted and is_certain:
            mark = Span(f"{glyphs.good:<3}", SpanRole.GOOD)
            text = Span(f"{result:<{_RESULT_COLUMNS}} ", SpanRole.STRONG)
        elif result:
            mark = Span(f"{'?':<3}", SpanRole.CAUTION)
            text = Span(f"{result:<{_RESULT_COLUMNS}} ", SpanRole.STRONG)
        else:
            mark = muted("-  ")
            text = muted(f"{'not yet':<{_RESULT_COLUMNS}} ")
        lines.append(line(mark, text, muted(step)))
    return lines


def _best_count(curve: Curve | None) -> str:
    if curve is None or curve.best is None:
        return ""
    if not curve.is_settled and curve.close_counts:
        return _CLOSE
    if not curve.is_settled:
        return f"{curve.best}{_LEADS}"
    return str(curve.best)


def _best_option(comparison: Comparison | None) -> str:
    if comparison is None or not comparison.is_measured:
        return ""
    if not comparison.is_settled and comparison.best == comparison.present:
        return _CLOSE
    if not comparison.is_settled:
        return f"{comparison.best}{_LEADS}"
    return option_name(comparison.best)


def _results(report: TuningReport) -> list[str]:
    """Return the result of each step; empty for steps without one."""
    writing, reading = (_best_count(report.curve(phase)) for phase in ("decode", "prefill"))
    weights, kv_type = (_best_option(report.comparison(part)) for part in ("weights", "kv"))
    pinning = pinning_verdict(report).replace("too close to call", _CLOSE)
    prefetch = "in details" if kernel_texts(report) else ""
    return [writing, reading, pinning, weights, prefetch, kv_type]

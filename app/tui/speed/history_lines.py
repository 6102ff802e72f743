"""Speeds of a model's replies in the last 90 days, as bars with marks for what made them differ.

A bar ends at the median of its span of time. It is solid up to the slowest reply, and a thin line
above it ends at the fastest one.
"""

from __future__ import annotations

from functools import lru_cache

from app.machine.sensors.daily_speeds import MARK_WORDS, DailySpeeds, DaySpeeds
from app.machine.sensors.reply_history import PastSpeeds
from app.models.library.speed_history import (
    HistoryColumns,
    columns_of,
    dated_sparkline,
    replies_text,
)
from app.text import figures
from app.text.glyphs import Glyphs
from app.tui.drawing.graph import LABEL_COLUMNS, next_round
from app.tui.drawing.lines import (
    EMPTY,
    Line,
    Span,
    SpanRole,
    joined,
    level_of,
    line,
    muted,
    spread_lines,
    strong,
)
from app.tui.drawing.panels import FRAME_COLUMNS, FRAME_ROWS, divided, panel, part_glyph
from app.tui.speed.watch import PerformanceView

USUAL_ROWS = FRAME_ROWS + 5
"""Rows of the panel: its frame, three rows of bars, the base line and the dates."""
_MOST_BAR_ROWS = 8
_MOST_CELLS_PER_COLUMN = 6
_GAP_FROM_CELLS = 3
"""Cells of a column from which a gap is left between two bars."""
_SHADE = 2
"""Index of the filling between the slowest reply and the median."""


def has_history(view: PerformanceView) -> bool:
    """Whether there is a reply to draw."""
    return bool(columns_of(view.figures.daily, view.today, 1).columns)


def history_panel(view: PerformanceView, glyphs: Glyphs, width: int, rows: int) -> list[Line]:
    """Return the panel in a number of rows; 0 for the usual number."""
    rows = rows or USUAL_ROWS
    measured = view.figures
    return list(_panel(measured.daily, measured.earlier, view.today, glyphs, width, rows))


def history_foot(view: PerformanceView, width: int, glyphs: Glyphs) -> Line:
    """Return the history as one short line for the edge of a panel."""
    return _foot(view.figures.daily, view.today, width, glyphs)


@lru_cache(maxsize=4)  # it changes once a reply, and is drawn twice a second
def _foot(daily: DailySpeeds, today: int, width: int, glyphs: Glyphs) -> Line:
    name = "History "
    text = dated_sparkline(daily, today, width - len(name), glyphs)
    if not text:
        return EMPTY
    return line(muted(name + text))


@lru_cache(maxsize=8)
def _panel(
    daily: DailySpeeds,
    earlier: PastSpeeds | None,
    today: int,
    glyphs: Glyphs,
    width: int,
    rows: int,
) -> tuple[Line, ...]:
    inner = width - FRAME_COLUMNS
    cells = max(1, inner - LABEL_COLUMNS)
    chart = columns_of(daily, today, cells)
    if not chart.columns:
        return ()
    usual_tps = 0.0
    if earlier is not None:
        usual_tps = earlier.median_tps
    n_bar_rows = max(1, min(_MOST_BAR_ROWS, rows - FRAME_ROWS - 2))
    body = [
        *_bar_lines(chart, usual_tps, cells, n_bar_rows, glyphs),
        _base_line(chart, cells, glyphs),
        _dates_line(chart, cells),
    ]
    figures_line = _figures_line(daily, earlier, chart, inner - 12, glyphs)
    legend = _legend(chart, inner - 2, glyphs)
    return tuple(panel("History", body, width, glyphs, rows, note=figures_line, foot=legend))


def _slot_widths(chart: HistoryColumns, cells: int) -> list[int]:
    """Divide the cells among the columns; a few columns do not fill them."""
    n_columns = len(chart.columns)
    return divided(min(cells, _MOST_CELLS_PER_COLUMN * n_columns), n_columns)


def _bar_lines(
    chart: HistoryColumns, usual_tps: float, cells: int, rows: int, glyphs: Glyphs
) -> list[Line]:
    fastest_tps = max(column.fastest_tps for column in chart.columns if column)
    top_tps = next_round(fastest_tps)
    lines = []
    for row in range(rows - 1, -1, -1):
        label = ""
        if row == rows - 1:
            label = f"{top_tps:g}"
        spans = [muted(f"{label:>{LABEL_COLUMNS - 1}} ")]
        for column, width in zip(chart.columns, _slot_widths(chart, cells), strict=True):
            n_cells = width
            if width >= _GAP_FROM_CELLS:
                n_cells = width - 1
            cell = Span(" ")
            if column is not None:
                cell = _cell_of(column, row, rows, top_tps, usual_tps, glyphs)
            if cell.text == glyphs.frame[-1]:
                text = f"{cell.text:^{n_cells}}"
            else:
                text = cell.text * n_cells
            spans += [Span(text, cell.role), Span(" " * (width - n_cells))]
        lines.append(joined(spans))
    return lines


def _cell_of(
    column: DaySpeeds, row: int, rows: int, top_tps: float, usual_tps: float, glyphs: Glyphs
) -> Span:
    """Return the character of a column in a row, counted from the base line."""
    steps = len(glyphs.levels) - 1

    def height_of(tps: float) -> int:
        """Return the height above the lower edge of the row, in steps."""
        return max(1, round(tps / top_tps * rows * steps)) - row * steps

    role = SpanRole.WRITING
    if usual_tps > 0:
        role = level_of(column.median_tps / usual_tps)
    median = height_of(column.median_tps)
    if median >= steps and height_of(column.slowest_tps) <= 0:
        return Span(part_glyph(_SHADE, glyphs), role)
    if median > 0:
        return Span(glyphs.levels[min(steps, median)], role)
    if height_of(column.fastest_tps) > steps // 2:
        return muted(glyphs.frame[-1])
    return Span(" ")


def _base_line(chart: HistoryColumns, cells: int, glyphs: Glyphs) -> Line:
    """Return the base line with the most important mark of each column."""
    spans = [muted(f"{0:>{LABEL_COLUMNS - 1}} ")]
    for column, width in zip(chart.columns, _slot_widths(chart, cells), strict=True):
        if column is None or not column.marks:
            spans.append(Span(glyphs.line * width, SpanRole.FRAME))
            continue
        middle = max(0, width // 2 - 1)
        spans += [
            Span(glyphs.line * middle, SpanRole.FRAME),
            Span(column.marks[0].value, SpanRole.CAUTION),
            Span(glyphs.line * (width - middle - 1), SpanRole.FRAME),
        ]
    return joined(spans)


def _dates_line(chart: HistoryColumns, cells: int) -> Line:
    """Return the first date below the first column, and the last one below the last column."""
    n_cells = sum(_slot_widths(chart, cells))
    first = chart.first_label
    last = chart.last_label
    if not last:
        text = first
    elif len(first) + len(last) + 1 > n_cells:
        text = f"{first} to {last}"
    else:
        text = f"{first}{last:>{n_cells - len(first)}}"
    return line(muted(" " * LABEL_COLUMNS + text))


def _figures_line(
    daily: DailySpeeds,
    earlier: PastSpeeds | None,
    chart: HistoryColumns,
    width: int,
    glyphs: Glyphs,
) -> Line:
    """Return the usual speed, the best one and the last one, and more if there is room."""
    best_tps = max(column.fastest_tps for column in chart.columns if column)
    speeds = []
    if earlier is not None:  # the best measurement may be older than the chart
        speeds.append((earlier.median_name, earlier.median_tps))
        best_tps = max(best_tps, earlier.best_tps)
    speeds.append(("best", best_tps))
    newest = daily.newest()
    if newest is not None:
        speeds.append(("latest", newest.tps))
    cells = [line(muted(f"{name} "), strong(figures.rate(tps))) for name, tps in speeds]
    cells.append(line(muted(replies_text(chart.n_replies))))
    return spread_lines(cells, width, glyphs.between)[0]


def _legend(chart: HistoryColumns, width: int, glyphs: Glyphs) -> Line:
    """Return the letters of the marks with their meaning, as far as they fit."""
    cells = [
        line(Span(mark.value, SpanRole.CAUTION), muted(f" {MARK_WORDS[mark]}"))
        for mark in chart.marks
    ]
    if any(column.slowest_tps < column.fastest_tps for column in chart.columns if column):
        signs = part_glyph(_SHADE, glyphs) + glyphs.frame[-1]
        cells.append(line(muted(f"{signs} slowest and fastest")))
    return next(iter(spread_lines(cells, width)), EMPTY)

"""The speed as a graph: a column for every second, a base line at zero, the ceiling and the usual speed across it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from app.text.glyphs import Glyphs
from app.text.record import record
from app.tui.speed.lines import Line, Role, Span

LABEL_COLUMNS = 6
_STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
_CEILING_WITHIN = 2.5
"""Largest ratio of ceiling to speed that is drawn; above it the ceiling is left out, or the curve would lie flat."""


@record
class Graph:
    """Values and marks of the graph."""

    rates_tps: Sequence[float] = ()
    """Of every second; the last ones that fit are shown."""
    ceiling_tps: float = 0.0
    median_tps: float = 0.0
    """Of earlier replies."""
    marked: Sequence[int] = ()
    """Seconds to point at."""


def top_of(graph: Graph) -> float:
    """Return a round number that everything drawn stays below."""
    highest = max((*graph.rates_tps, graph.median_tps), default=0.0)
    if 0 < graph.ceiling_tps <= _CEILING_WITHIN * highest:
        highest = max(highest, graph.ceiling_tps)
    return next_round(highest * 1.05) if highest > 0 else 1.0


def next_round(value: float) -> float:
    """Return the next of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in _STEPS if step * power >= value * 0.999999), 10 * power)


def graph_lines(graph: Graph, width: int, height: int, glyphs: Glyphs, top: float = 0.0) -> list[Line]:
    """Draw in ``width`` columns and ``height`` rows, the last of which is the base line.

    Args:
        top: at least this much is the graph high, so that it does not jump.
    """
    columns, rows = width - LABEL_COLUMNS, height - 1
    if columns < 4 or rows < 1:
        return [()] * max(0, height)
    top = max(top, top_of(graph))
    first = max(0, len(graph.rates_tps) - columns)
    shown = list(graph.rates_tps[first:])
    lines = [_row(graph, shown, row, rows, columns, top, glyphs) for row in range(rows)]
    base = [glyphs.line] * columns
    for second in graph.marked:
        if first <= second < first + columns:
            base[second - first] = glyphs.mark
    seconds = f" {columns} s"
    text = "".join(base)
    if glyphs.mark not in text[-len(seconds) :]:
        text = text[: -len(seconds)] + seconds
    return [*lines, (Span(f"{0:>{LABEL_COLUMNS - 2}} {glyphs.corner}", Role.MUTED), *_marks(text, glyphs))]


def _row(graph: Graph, shown: Sequence[float], row: int, rows: int, columns: int, top: float, glyphs: Glyphs) -> Line:
    steps = len(glyphs.levels) - 1
    below = rows - 1 - row
    cells = []
    for rate in shown:
        level = min(steps, max(0, round(rate / top * rows * steps) - below * steps))
        if below == 0 and rate > 0:
            level = max(1, level)  # slow is not nothing
        cells.append(glyphs.levels[level])
    curve = "".join(cells).ljust(columns)
    label = _label(row, rows, top)
    axis = Span(f"{label:>{LABEL_COLUMNS - 2}} {glyphs.axis}", Role.MUTED)
    return (axis, *_across(curve, _rule_of(graph, row, rows, top, glyphs)))


def _label(row: int, rows: int, top: float) -> str:
    if row == 0:
        return f"{top:g}"
    return f"{top / 2:g}" if rows % 2 == 0 and row == rows // 2 else ""


def _rule_of(graph: Graph, row: int, rows: int, top: float, glyphs: Glyphs) -> str:
    """Return what crosses the empty cells of a row: the ceiling, the median, or nothing."""
    for value, sign in ((graph.ceiling_tps, glyphs.ceiling), (graph.median_tps, glyphs.median)):
        if 0 < value <= top and row == rows - 1 - min(rows - 1, int(value / top * rows)):
            return sign
    return ""


def _across(curve: str, rule: str) -> list[Span]:
    """Return the curve's cells with a rule through the empty ones."""
    if not rule:
        return [Span(curve, Role.BAR)]
    spans: list[Span] = []
    for cell in curve:
        text, role = (rule, Role.MUTED) if cell == " " else (cell, Role.BAR)
        if spans and spans[-1].role is role:
            spans[-1] = Span(spans[-1].text + text, role)
        else:
            spans.append(Span(text, role))
    return spans


def _marks(base: str, glyphs: Glyphs) -> list[Span]:
    spans: list[Span] = []
    for cell in base:
        role = Role.WARNING if cell == glyphs.mark else Role.MUTED
        if spans and spans[-1].role is role:
            spans[-1] = Span(spans[-1].text + cell, role)
        else:
            spans.append(Span(cell, role))
    return spans

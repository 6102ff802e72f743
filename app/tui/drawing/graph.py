"""The speed as a filled curve on a base line at zero, with the machine's limit and the usual speed
across it.

A short reply is stretched over the width; of a long one the newest seconds are shown. The colour of
a column says which share of the limit it reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from app.text.glyphs import Glyphs
from app.text.record import record
from app.tui.drawing.lines import Line, Span, SpanRole, area_of, joined, level_of

LABEL_COLUMNS = 5
_STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
_LIMIT_WITHIN = 2.5
"""Largest ratio of limit to speed that is drawn; above it the limit is left out, or the curve would
lie flat."""
_MOST_STRETCHED = 16
"""Dots for a second at most: what comes in is a figure a second."""
_BRAILLE = 0x2800
_STEPS_OF_BRAILLE = 4
_LEFT_DOTS = (0x40, 0x04, 0x02, 0x01)
_RIGHT_DOTS = (0x80, 0x20, 0x10, 0x08)
"""Bits of the four dots of a column, the lowest first."""


@record
class Graph:
    """Values and marks of the graph."""

    rates_tps: Sequence[float] = ()
    """Of every second."""
    limit_tps: float = 0.0
    """Rate that the memory's bandwidth allows; 0 for unknown."""
    median_tps: float = 0.0
    """Of earlier replies."""
    marked: Sequence[int] = ()
    """Seconds to point at."""


class GraphScale:
    """The top of a graph, which only grows while a reply lasts."""

    def __init__(self) -> None:
        self._n_seconds = 0
        self.top_tps = 0.0

    def follow(self, graph: Graph) -> float:
        """Return the top for a graph that has grown, or is another reply's."""
        if len(graph.rates_tps) < self._n_seconds:
            self.top_tps = 0.0
        self._n_seconds = len(graph.rates_tps)
        self.top_tps = max(self.top_tps, top_of(graph))
        return self.top_tps


def top_of(graph: Graph) -> float:
    """Return a round number that everything drawn stays below."""
    highest = max((*graph.rates_tps, graph.median_tps), default=0.0)
    if 0 < graph.limit_tps <= _LIMIT_WITHIN * highest:
        highest = max(highest, graph.limit_tps)
    if highest > 0:
        return next_round(highest * 1.05)
    return 1.0


def next_round(value: float) -> float:
    """Return the next of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in _STEPS if step * power >= value * 0.999999), 10 * power)


def graph_lines(
    graph: Graph, width: int, height: int, glyphs: Glyphs, top: float = 0.0
) -> list[Line]:
    """Draw in ``width`` columns and ``height`` rows, the last being the base line; ``top`` is the
    least height."""
    columns = width - LABEL_COLUMNS
    rows = height - 1
    if columns < 4 or rows < 1:
        return [()] * max(0, height)
    top = max(top, top_of(graph))
    limit_tps = graph.limit_tps
    each = _dots_per_cell(glyphs)
    stretched, seconds_per_dot, first_s = _stretched(graph.rates_tps, each * columns)

    def colour(tps: float) -> SpanRole:
        if limit_tps > 0:
            return level_of(tps / limit_tps)
        return SpanRole.WRITING

    labels = {0: f"{top:g}"} | ({rows // 2: f"{top / 2:g}"} if rows % 2 == 0 else {})
    found = []
    for row, spans in enumerate(_area(stretched, rows, top, glyphs, colour)):
        rule = _rule_of(graph, rows - 1 - row, rows, top, glyphs)
        label = Span(f"{labels.get(row, ''):>{LABEL_COLUMNS - 1}} ", SpanRole.MUTED)
        found.append((label, *_with_rule(spans, rule, columns)))
    return [*found, _base(graph, columns, first_s, seconds_per_dot * each, glyphs)]


def history_lines(
    values: Sequence[float], width: int, rows: int, top: float, glyphs: Glyphs
) -> list[Line]:
    """Draw values of the last seconds as a filled curve without scales, the newest at the right
    end."""
    each = _dots_per_cell(glyphs)
    shown = list(values)[-each * width :]
    before = (each * width - len(shown)) // each
    drawn = _area(shown, rows, max(top, *shown, 1e-9), glyphs, lambda _: SpanRole.ACCENT)
    return [joined((Span(" " * before), *spans)) for spans in drawn]


def _dots_per_cell(glyphs: Glyphs) -> int:
    if glyphs.has_braille:
        return 2
    return 1


def _area(
    values: Sequence[float],
    rows: int,
    top: float,
    glyphs: Glyphs,
    colour: Callable[[float], SpanRole],
) -> list[list[Span]]:
    """Return the cells of a filled curve, row by row; its edge is stronger than what is below."""
    each = _dots_per_cell(glyphs)
    cells = [values[at : at + each] for at in range(0, len(values), each)]
    edges = [colour(max(cell)) for cell in cells]
    if glyphs.has_braille:
        steps = _STEPS_OF_BRAILLE
    else:
        steps = len(glyphs.levels) - 1
    heights = [-(-round(max(cell) / top * rows * steps) // steps) for cell in cells]
    return [
        [
            Span(
                _shape(cell, below, rows, top, glyphs),
                edge if below >= height - 1 else area_of(edge),
            )
            for cell, edge, height in zip(cells, edges, heights, strict=True)
        ]
        for below in range(rows - 1, -1, -1)
    ]


def _stretched(rates_tps: Sequence[float], dots: int) -> tuple[list[float], float, float]:
    """Return a value for each dot, the seconds of a dot, and the first second shown."""
    n = len(rates_tps)
    if n:
        each = max(1, min(_MOST_STRETCHED, dots // n))
    else:
        each = 1
    if each == 1:
        return list(rates_tps[-dots:]), 1.0, float(max(0, n - dots))
    found = []
    for dot in range((n - 1) * each + 1):
        second, part = divmod(dot, each)
        after = rates_tps[min(n - 1, second + 1)]
        found.append(rates_tps[second] + (after - rates_tps[second]) * part / each)
    return found, 1 / each, 0.0


def _shape(cell: Sequence[float], below: int, rows: int, top: float, glyphs: Glyphs) -> str:
    """Return the character of one cell, ``below`` rows above the base line."""
    if not glyphs.has_braille:
        return glyphs.levels[_filled(cell[0], below, rows, top, len(glyphs.levels) - 1)]
    bits = 0
    for tps, dots in zip(cell, (_LEFT_DOTS, _RIGHT_DOTS), strict=False):
        bits |= sum(dots[: _filled(tps, below, rows, top, len(dots))])
    if bits:
        return chr(_BRAILLE + bits)
    return " "


def _filled(tps: float, below: int, rows: int, top: float, steps: int) -> int:
    filled = min(steps, max(0, round(tps / top * rows * steps) - below * steps))
    # slow is not nothing
    if below == 0 and tps > 0:
        return max(1, filled)
    return filled


def _rule_of(graph: Graph, below: int, rows: int, top: float, glyphs: Glyphs) -> tuple[str, str]:
    """Return what crosses the empty cells of a row, and its name; two blanks for nothing."""
    named = ((graph.limit_tps, glyphs.limit, "limit"), (graph.median_tps, glyphs.median, "usual"))
    for value, sign, name in named:
        if 0 < value <= top and below == min(rows - 1, int(value / top * rows)):
            return sign, f" {name} {value:.1f} "
    return " ", ""


def _with_rule(cells: list[Span], rule: tuple[str, str], columns: int) -> Line:
    """Return the curve's cells with a rule through the empty ones, and its name where there is room
    at its end."""
    sign, name = rule
    cells = [*cells, *[Span(" ")] * (columns - len(cells))]
    empty_from = max((at + 1 for at, cell in enumerate(cells) if cell.text != " "), default=0)
    end = columns - len(name) - 2
    spans = [Span(sign, SpanRole.FRAME) if cell.text == " " else cell for cell in cells]
    if name and end >= empty_from:
        spans[end : end + len(name)] = [Span(name, SpanRole.MUTED)]
    return joined(spans)


def _base(
    graph: Graph, columns: int, first_s: float, seconds_per_cell: float, glyphs: Glyphs
) -> Line:
    cells = [Span(glyphs.line, SpanRole.FRAME)] * columns
    last_s = first_s + columns * seconds_per_cell
    if first_s:
        begin = f"{first_s:.0f} s "
    else:
        begin = ""
    end = f" {last_s:.0f} s"
    if columns > 3 * (len(begin) + len(end)):
        cells[: len(begin)] = [Span(sign, SpanRole.MUTED) for sign in begin]
        cells[-len(end) :] = [Span(sign, SpanRole.MUTED) for sign in end]
    for second in graph.marked:
        at = int((second - first_s) / seconds_per_cell)
        if 0 <= at < columns:
            cells[at] = Span(glyphs.mark, SpanRole.CAUTION)
    return joined((Span(f"{0:>{LABEL_COLUMNS - 1}} ", SpanRole.MUTED), *cells))

"""Speed as a filled curve above zero, with rules for the machine's limit and the usual speed.

A short reply is stretched to the width; a long one shows its newest seconds. The colour of a column
compares it with the usual speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from app.text import figures
from app.text.glyphs import Glyphs
from app.text.record import record
from app.tui.drawing.lines import Line, Span, SpanRole, area_of, joined, level_of

LABEL_COLUMNS = 5
_STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
_LIMIT_WITHIN = 2.5
"""Largest ratio of limit to speed for which the limit is drawn, so that the curve is not flat."""
_MOST_STRETCHED = 16
"""Limit on the dots per second; there is one value per second."""
_BRAILLE = 0x2800
_STEPS_OF_BRAILLE = 4
_LEFT_DOTS = (0x40, 0x04, 0x02, 0x01)
_RIGHT_DOTS = (0x80, 0x20, 0x10, 0x08)
"""Bits of the four dots in a column of a Braille character, the lowest first."""
_PAIRS = [
    [
        chr(_BRAILLE + sum(_LEFT_DOTS[:n_left]) + sum(_RIGHT_DOTS[:n_right]))
        if n_left or n_right
        else " "
        for n_right in range(_STEPS_OF_BRAILLE + 1)
    ]
    for n_left in range(_STEPS_OF_BRAILLE + 1)
]
"""Braille characters by the number of dots in the left and in the right column."""


@record
class GraphMark:
    """A named mark at a time of a graph."""

    second: float
    name: str


@record
class Graph:
    """Values and marks of a graph."""

    rates_tps: Sequence[float] = ()
    """Tokens per second, for each second."""
    limit_tps: float = 0.0
    """Limit by the memory's bandwidth; 0 if unknown."""
    median_tps: float = 0.0
    """Median of earlier replies; 0 if unknown."""
    marked: Sequence[int] = ()
    """Seconds to mark on the base line."""
    changes: Sequence[GraphMark] = ()
    """Named marks in the top row, in the order of time."""
    median_name: str = "usual"


class _Column(NamedTuple):
    """A cell's width of a filled curve."""

    steps: Sequence[int]
    """Steps from the base line that each of its values fills."""
    edge: SpanRole
    area: SpanRole
    full: Span
    """Cell below the edge."""


_BLANK = Span(" ")


class GraphScale:
    """Top of a graph's scale, which only grows during a reply, and what was drawn last with it."""

    def __init__(self) -> None:
        self._n_seconds = 0
        self.top_tps = 0.0
        self._drawn: tuple[Graph, int, int, Glyphs] | None = None
        self._lines: list[Line] = []

    def draw(self, graph: Graph, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        """Draw a graph, or return the lines of the same graph from before."""
        graph_and_size = graph, width, height, glyphs
        if graph_and_size != self._drawn:
            self._lines = graph_lines(graph, width, height, glyphs, self.follow(graph))
            self._drawn = graph_and_size
        return self._lines

    def follow(self, graph: Graph) -> float:
        """Return the top for a graph; a shorter graph belongs to a new reply and resets it."""
        if len(graph.rates_tps) < self._n_seconds:
            self.top_tps = 0.0
        self._n_seconds = len(graph.rates_tps)
        self.top_tps = max(self.top_tps, top_of(graph))
        return self.top_tps


def top_of(graph: Graph) -> float:
    """Return a round number above everything that is drawn."""
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
    """Draw a graph in ``width`` columns and ``height`` rows, the last of which is the base line.

    ``top`` is the least top of the scale.
    """
    columns = width - LABEL_COLUMNS
    rows = height - 1
    if columns < 4 or rows < 1:
        return [()] * max(0, height)
    top = max(top, top_of(graph))
    median_tps = graph.median_tps
    n_dots_per_cell = _dots_per_cell(glyphs)
    values, seconds_per_dot, first_s = _stretched(graph.rates_tps, n_dots_per_cell * columns)

    def colour(tps: float) -> SpanRole:
        if median_tps > 0:
            return level_of(tps / median_tps)
        return SpanRole.WRITING

    labels = {0: f"{top:g}"}
    if rows % 2 == 0:
        labels[rows // 2] = f"{top / 2:g}"
    seconds_per_cell = seconds_per_dot * n_dots_per_cell
    lines = []
    for row, spans in enumerate(_area(values, rows, top, glyphs, colour)):
        rule = _rule_of(graph, rows - 1 - row, rows, top, glyphs)
        label = Span(f"{labels.get(row, ''):>{LABEL_COLUMNS - 1}} ", SpanRole.MUTED)
        if row == 0 and graph.changes:
            sign, _ = rule
            rule = sign, ""  # its name and those of the changes would overlap
        cells = _with_rule(spans, rule, columns)
        if row == 0:
            _put_changes(cells, graph, first_s, seconds_per_cell, glyphs)
        lines.append(joined((label, *cells)))
    return [*lines, _base(graph, columns, first_s, seconds_per_cell, glyphs)]


def cell_shape(steps: Sequence[int], glyphs: Glyphs) -> str:
    """Return the character whose columns (two in Braille, else one) are filled by these steps."""
    if not glyphs.has_braille:
        return glyphs.levels[steps[0]]
    return _PAIRS[steps[0]][steps[-1] if len(steps) > 1 else 0]


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
    """Return the cells of a filled curve by rows; its edge is stronger than the area below."""
    n_dots = _dots_per_cell(glyphs)
    cells = [values[start : start + n_dots] for start in range(0, len(values), n_dots)]
    edges = [colour(max(cell)) for cell in cells]
    if glyphs.has_braille:
        steps = _STEPS_OF_BRAILLE
    else:
        steps = len(glyphs.levels) - 1
    totals = [_total_steps(value, rows * steps, top) for value in values]
    columns = []
    for start, edge in zip(range(0, len(values), n_dots), edges, strict=True):
        together = totals[start : start + n_dots]
        full = Span(cell_shape([steps] * len(together), glyphs), area_of(edge))
        columns.append(_Column(together, edge, area_of(edge), full))
    area = []
    for row in range(rows - 1, -1, -1):
        spans = []
        below = row * steps
        for column in columns:
            least = min(column.steps) - below
            most = max(column.steps) - below
            if most <= 0:
                spans.append(_BLANK)
            elif least > steps:
                spans.append(column.full)
            else:
                filled = [min(steps, max(0, total - below)) for total in column.steps]
                role = column.edge if most <= steps else column.area
                spans.append(Span(cell_shape(filled, glyphs), role))
        area.append(spans)
    return area


def _stretched(rates_tps: Sequence[float], dots: int) -> tuple[list[float], float, float]:
    """Return a value for each dot, the seconds per dot, and the first second shown."""
    n_seconds = len(rates_tps)
    if n_seconds:
        n_dots_per_second = max(1, min(_MOST_STRETCHED, dots // n_seconds))
    else:
        n_dots_per_second = 1
    if n_dots_per_second == 1:
        return list(rates_tps[-dots:]), 1.0, float(max(0, n_seconds - dots))
    values = []
    for dot in range((n_seconds - 1) * n_dots_per_second + 1):
        second, step = divmod(dot, n_dots_per_second)
        next_value = rates_tps[min(n_seconds - 1, second + 1)]
        values.append(
            rates_tps[second] + (next_value - rates_tps[second]) * step / n_dots_per_second
        )
    return values, 1 / n_dots_per_second, 0.0


def _total_steps(value: float, n_steps: int, top: float) -> int:
    """Return the number of steps that a value fills; a low speed still shows one."""
    total = max(0, round(value / top * n_steps))
    if value > 0:
        return max(1, total)
    return total


def _rule_of(graph: Graph, row: int, rows: int, top: float, glyphs: Glyphs) -> tuple[str, str]:
    """Return the character and the label of a rule in this row; a blank and "" if there is none."""
    rules = (
        (graph.limit_tps, glyphs.limit, "limit"),
        (graph.median_tps, glyphs.median, graph.median_name),
    )
    for value, sign, name in rules:
        if 0 < value <= top and row == min(rows - 1, int(value / top * rows)):
            return sign, f" {name} {figures.rate(value)} "
    return " ", ""


def _with_rule(curve: list[Span], rule: tuple[str, str], columns: int) -> list[Span]:
    """Draw a rule through a row's empty cells, with its label at the end if there is room.

    Return a span for each cell.
    """
    sign, name = rule
    curve = [*curve, *[Span(" ")] * (columns - len(curve))]
    empty_from = max((index + 1 for index, cell in enumerate(curve) if cell.text != " "), default=0)
    end = columns - len(name) - 2
    rule_span = Span(sign, SpanRole.FRAME)
    spans = [rule_span if cell.text == " " else cell for cell in curve]
    if name and end >= empty_from:
        spans[end : end + len(name)] = [Span(character, SpanRole.MUTED) for character in name]
    return spans


def _put_changes(
    cells: list[Span], graph: Graph, first_s: float, seconds_per_cell: float, glyphs: Glyphs
) -> None:
    """Draw named marks into a row, each name at the right of its mark, or else at the left.

    A name without room is shortened to its first word, or left out.
    """
    columns = len(cells)
    begins = [int((mark.second - first_s) / seconds_per_cell) for mark in graph.changes]
    left_end = 0
    for number, (mark, begin) in enumerate(zip(graph.changes, begins, strict=True)):
        if not 0 <= begin < columns:
            continue
        right_end = min([columns, *begins[number + 1 : number + 2]])
        text = _fitting_name(mark.name, right_end - begin - 1)
        start = begin
        label = f"{glyphs.change}{text}"
        if not text and (text := _fitting_name(mark.name, begin - left_end)):
            start = begin - len(text)
            label = f"{text}{glyphs.change}"
        left_end = start + len(label)
        cells[start:left_end] = [Span(character, SpanRole.ACCENT) for character in label]


def _fitting_name(name: str, columns: int) -> str:
    """Return a name, or its first word, or "" if neither fits."""
    texts = (name, name.split()[0].strip(","))
    return next((text for text in texts if len(text) <= columns), "")


def _base(
    graph: Graph, columns: int, first_s: float, seconds_per_cell: float, glyphs: Glyphs
) -> Line:
    cells = [Span(glyphs.line, SpanRole.FRAME)] * columns
    last_s = first_s + columns * seconds_per_cell
    if first_s:
        start_label = f"{first_s:.0f} s "
    else:
        start_label = ""
    end_label = f" {last_s:.0f} s"
    for second in graph.marked:
        index = int((second - first_s) / seconds_per_cell)
        if 0 <= index < columns:
            cells[index] = Span(glyphs.mark, SpanRole.CAUTION)
    if columns > 3 * (len(start_label) + len(end_label)):
        cells[: len(start_label)] = [Span(character, SpanRole.MUTED) for character in start_label]
        cells[-len(end_label) :] = [Span(character, SpanRole.MUTED) for character in end_label]
    return joined((Span(f"{0:>{LABEL_COLUMNS - 1}} ", SpanRole.MUTED), *cells))

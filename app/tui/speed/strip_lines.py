"""The strip beside the chat: speed with its curve, cores and memory as panels; three lines on a narrow screen."""

from __future__ import annotations

from app.text.glyphs import Glyphs
from app.tui.drawing import lines
from app.tui.drawing.gauges import gauge
from app.tui.drawing.graph import Scale, graph_lines
from app.tui.drawing.lines import EMPTY, Line, Role, Span, level_of, line, muted, spread_lines, strong
from app.tui.drawing.panels import FRAME_COLUMNS, FRAME_ROWS, panel
from app.tui.speed import machine_lines, writing_lines
from app.tui.speed.watch import PerformanceView

_LEAST_GRAPH_ROWS, _MOST_GRAPH_ROWS = 4, 9
_FLAT_GAUGE_COLUMNS = 12


def strip_lines(view: PerformanceView, width: int, height: int, glyphs: Glyphs, scale: Scale) -> list[Line]:
    """Draw the column: the speed takes what the others leave, which are in few words where there is little room."""
    inner = width - FRAME_COLUMNS
    numbers = [*writing_lines.number_lines(view, inner, glyphs), *writing_lines.limit_lines(view, inner, glyphs)]
    room = height - len(numbers) - _LEAST_GRAPH_ROWS - FRAME_ROWS
    cores = machine_lines.cores_lines(view, inner, 0, glyphs)
    memory = machine_lines.memory_lines(view, inner, glyphs)
    if len(cores) + len(memory) + 2 * FRAME_ROWS > room:
        cores, memory = _in_short(view, inner, glyphs)
    below = []
    for name, body, note in (("Cores", cores, EMPTY), ("Memory", memory, machine_lines.memory_note(view))):
        if len(body) + FRAME_ROWS <= room:
            below += panel(name, body, width, glyphs, note=note)
            room -= len(body) + FRAME_ROWS
    graph = writing_lines.graph_of(view)
    rows = min(_MOST_GRAPH_ROWS, _LEAST_GRAPH_ROWS + max(0, room))
    drawn = graph_lines(graph, inner, rows, glyphs, scale.follow(graph))
    foot = writing_lines.stutter_line(view, glyphs)[:1]
    return [*panel(writing_lines.name_of(view), [*numbers, *drawn], width, glyphs, foot=foot), *below][:height]


def _in_short(view: PerformanceView, width: int, glyphs: Glyphs) -> tuple[list[Line], list[Line]]:
    """Return a sign for each core with the clock, and the memory's bar with its parts."""
    if view.sample is None:
        return [], []
    signs = "".join(lines.level(load, glyphs) for load in view.sample.core_loads)[: width // 2]
    clock = machine_lines.clock_text(view.sample, " ")
    parts = machine_lines.memory_cells(view.sample, view.figures.facts, glyphs)
    bar = machine_lines.memory_lines(view, width, glyphs)[:1]
    cores = [line(Span(signs, Role.ACCENT), muted(f"  {clock}"))]
    if view.slowed_by > 1:
        cores.append(machine_lines.screen_line(view))
    return cores, [*bar, *spread_lines([parts[0], parts[-1], *parts[1:-1]], width)]


def flat_lines(view: PerformanceView, width: int, glyphs: Glyphs) -> list[Line]:
    """Return the figures in three lines, for a terminal that is too narrow for a column."""
    tps = writing_lines.shown_tps(view)
    first = [line(strong(lines.rate(tps)), muted(" tok/s"))]
    share = writing_lines.limit_share(view)
    if share is not None:
        drawn = gauge(share, _FLAT_GAUGE_COLUMNS, glyphs, level_of(share))
        first.append((*drawn, Span(lines.percent(share, 4)), muted(" of the limit")))
    first.append(line(strong(lines.milliseconds(tps)), muted(" ms a token")))
    second, third = [], [machine_lines.screen_line(view)]
    sample = view.sample
    if sample is not None:
        cores = "".join(lines.level(load, glyphs) for load in sample.core_loads[:16])
        second = [line(muted("cores "), cores)] if cores else []
        clock = machine_lines.clock_text(sample, glyphs.between)
        second += [line(muted(clock))] if clock else []
        third = machine_lines.memory_cells(sample, view.figures.facts, glyphs)
        second.append(machine_lines.screen_line(view))
    rows = (spread_lines(parts, width, glyphs.between)[:1] or [EMPTY] for parts in (first, second, third))
    return [lines.clipped(row[0], width) for row in rows]

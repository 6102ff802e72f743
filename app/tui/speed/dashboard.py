"""The performance screen and the strip next to the chat, each as one picture.

The screen has panels in one, two or three columns with the curve above them; the strip has speed
with its curve, cores and memory as panels, or three lines where the screen is narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from app.text import figures
from app.text.glyphs import Glyphs
from app.tui.drawing import lines
from app.tui.drawing.graph import GraphScale, graph_lines
from app.tui.drawing.lines import (
    EMPTY,
    Line,
    Span,
    SpanRole,
    fitted,
    level_of,
    line,
    muted,
    spread_lines,
    strong,
)
from app.tui.drawing.panels import (
    FRAME_COLUMNS,
    FRAME_ROWS,
    aired,
    divided,
    gauge,
    panel,
    side_by_side,
)
from app.tui.speed import machine_lines, writing_lines
from app.tui.speed.watch import PerformanceView

TWO_COLUMNS_FROM = 76
THREE_COLUMNS_FROM = 160
_NUMBER_COLUMNS = 27
_GRAPH_FROM_COLUMNS = 56
_LEAST_WRITING_ROWS = 9
_USUAL_WRITING_ROWS = 11
_MOST_WRITING_SHARE = 0.55
"""Of the height; what is left goes to the panels below."""
_LEAST_GRAPH_ROWS = 4
_MOST_GRAPH_ROWS = 9
"""Of the strip."""
_FLAT_GAUGE_COLUMNS = 12

_Section = Callable[[int, int], list[Line]]
"""Draws a panel in a width, and in a number of rows: 0 for as many as it needs."""


def dashboard_lines(
    view: PerformanceView, width: int, height: int, glyphs: Glyphs, scale: GraphScale
) -> list[Line]:
    """Draw everything in ``width`` columns; it fills ``height`` rows where it has room there, and
    is longer else."""
    sections = _reply_panel, _token_panel, machine_lines.memory_panel, machine_lines.cores_panel
    reply, token, memory, cores = (partial(section, view, glyphs) for section in sections)
    if width >= THREE_COLUMNS_FROM:
        columns = [[reply, memory], [token], [cores]]
    elif width >= TWO_COLUMNS_FROM:
        columns = [[reply, token], [memory, cores]]
    else:
        columns = [[reply, memory, cores, token]]
    widths = divided(width, len(columns))
    needed = max(
        sum(len(section(each, 0)) for section in stack)
        for stack, each in zip(columns, widths, strict=True)
    )
    if len(columns) == 1:
        above = min(_USUAL_WRITING_ROWS, max(_LEAST_WRITING_ROWS, height // 2))
        return [*_writing(view, width, above, glyphs, scale), *_stacked(columns[0], width, 0)]
    above = max(_LEAST_WRITING_ROWS, min(height - needed, int(_MOST_WRITING_SHARE * height)))
    below = max(height - above, 2 * (FRAME_ROWS + 3))
    blocks = [_stacked(stack, each, below) for stack, each in zip(columns, widths, strict=True)]
    return [*_writing(view, width, above, glyphs, scale), *side_by_side(blocks, widths)]


def _stacked(sections: Sequence[_Section], width: int, height: int) -> list[Line]:
    """Draw panels one below the other; their rows are shared out by what they need."""
    if not height:
        return [one for section in sections for one in section(width, 0)]
    needs = [len(section(width, 0)) for section in sections]
    heights = [height * need // sum(needs) for need in needs]
    heights[-1] += height - sum(heights)
    return [
        one for section, rows in zip(sections, heights, strict=True) for one in section(width, rows)
    ]


def _writing(
    view: PerformanceView, width: int, height: int, glyphs: Glyphs, scale: GraphScale
) -> list[Line]:
    """Draw the speed: numbers at the left, the curve at the right."""
    inner = width - FRAME_COLUMNS
    rows = height - FRAME_ROWS
    columns = min(inner, _NUMBER_COLUMNS)
    first = [
        *writing_lines.number_lines(view, columns, glyphs),
        *writing_lines.limit_lines(view, columns, glyphs),
    ]
    rest = writing_lines.compared_lines(view, columns)
    if rows >= len(first) + len(rest) + 1:
        apart = [EMPTY]
    else:
        apart = []
    numbers = [fitted(one, columns) for one in [*first, *apart, *rest][:rows]]
    if len(numbers) < rows:
        numbers = [EMPTY, *numbers]
    if inner >= _GRAPH_FROM_COLUMNS:
        graph = writing_lines.graph_of(view)
        drawn = graph_lines(graph, inner - _NUMBER_COLUMNS - 2, rows, glyphs, scale.follow(graph))
        numbers = side_by_side([numbers, drawn], [_NUMBER_COLUMNS + 2, inner - _NUMBER_COLUMNS - 2])
    if inner >= _GRAPH_FROM_COLUMNS:
        note = line(muted("tokens a second"))
    else:
        note = EMPTY
    foot = writing_lines.stutter_line(view, glyphs)
    return panel(writing_lines.name_of(view), numbers, width, glyphs, height, note, foot)


def _reply_panel(view: PerformanceView, glyphs: Glyphs, width: int, rows: int) -> list[Line]:
    spent = view.figures.last_reply
    if spent is not None:
        note = line(muted(figures.seconds(spent.total_s)))
    else:
        note = EMPTY
    body = writing_lines.reply_lines(
        spent, width - FRAME_COLUMNS, rows - FRAME_ROWS if rows else 5, glyphs
    )
    return panel("Last reply", aired(body, rows), width, glyphs, rows, note)


def _token_panel(view: PerformanceView, glyphs: Glyphs, width: int, rows: int) -> list[Line]:
    name, whole = writing_lines.token_title(view)
    body = writing_lines.token_lines(
        view, width - FRAME_COLUMNS, rows - FRAME_ROWS if rows else 99, glyphs
    )
    return panel(name, aired(body, rows), width, glyphs, rows, line(muted(whole)))


def strip_lines(
    view: PerformanceView, width: int, height: int, glyphs: Glyphs, scale: GraphScale
) -> list[Line]:
    """Draw the column: the speed takes what the others leave, which are in few words where there is
    little room."""
    inner = width - FRAME_COLUMNS
    numbers = [
        *writing_lines.number_lines(view, inner, glyphs),
        *writing_lines.limit_lines(view, inner, glyphs),
    ]
    room = height - len(numbers) - _LEAST_GRAPH_ROWS - FRAME_ROWS
    cores = machine_lines.cores_lines(view, inner, 0, glyphs)
    memory = machine_lines.memory_lines(view, inner, glyphs)
    if len(cores) + len(memory) + 2 * FRAME_ROWS > room:
        cores, memory = _in_short(view, inner, glyphs)
    below = []
    for name, body, note in (
        ("Cores", cores, EMPTY),
        ("Memory", memory, machine_lines.memory_note(view)),
    ):
        if len(body) + FRAME_ROWS <= room:
            below += panel(name, body, width, glyphs, note=note)
            room -= len(body) + FRAME_ROWS
    graph = writing_lines.graph_of(view)
    rows = min(_MOST_GRAPH_ROWS, _LEAST_GRAPH_ROWS + max(0, room))
    drawn = graph_lines(graph, inner, rows, glyphs, scale.follow(graph))
    foot = writing_lines.stutter_line(view, glyphs)[:1]
    return [
        *panel(writing_lines.name_of(view), [*numbers, *drawn], width, glyphs, foot=foot),
        *below,
    ][:height]


def _in_short(view: PerformanceView, width: int, glyphs: Glyphs) -> tuple[list[Line], list[Line]]:
    """Return a sign for each core with the clock, and the memory's bar with its parts."""
    if view.sample is None:
        return [], []
    signs = "".join(lines.level(load, glyphs) for load in view.sample.core_loads)[: width // 2]
    clock = machine_lines.clock_text(view.sample, " ")
    parts = machine_lines.memory_cells(view.sample, view.figures.facts, glyphs)
    bar = machine_lines.memory_lines(view, width, glyphs)[:1]
    cores = [line(Span(signs, SpanRole.ACCENT), muted(f"  {clock}"))]
    if view.slowed_by > 1:
        cores.append(machine_lines.screen_line(view, width))
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
    second = []
    third = [machine_lines.screen_line(view, width)]
    sample = view.sample
    if sample is not None:
        cores = "".join(lines.level(load, glyphs) for load in sample.core_loads[:16])
        if cores:
            second = [line(muted("cores "), cores)]
        else:
            second = []
        clock = machine_lines.clock_text(sample, glyphs.between)
        if clock:
            second += [line(muted(clock))]
        else:
            second += []
        third = machine_lines.memory_cells(sample, view.figures.facts, glyphs)
        second.append(machine_lines.screen_line(view, width))
    rows = (
        spread_lines(parts, width, glyphs.between)[:1] or [EMPTY]
        for parts in (first, second, third)
    )
    return [lines.clipped(row[0], width) for row in rows]

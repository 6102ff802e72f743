"""Layout of the performance screen and of the strip next to the chat.

The screen has panels in one, two or three columns below the curve of the speed. The strip has
panels for speed, cores and memory, or three lines on narrow screens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial

from app.machine.sensors.records import PhaseCost, TimeSpent
from app.text import figures
from app.text.glyphs import Glyphs
from app.tui.drawing import lines
from app.tui.drawing.graph import GraphScale
from app.tui.drawing.lines import (
    EMPTY,
    Line,
    Span,
    SpanRole,
    fitted,
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
from app.tui.speed import history_lines, machine_lines, writing_lines
from app.tui.speed.change_lines import change_lines
from app.tui.speed.watch import PerformanceView

TWO_COLUMNS_FROM = 76
THREE_COLUMNS_FROM = 160
_NUMBER_COLUMNS = 27
_GRAPH_FROM_COLUMNS = 56
_LEAST_WRITING_ROWS = 9
_LEAST_PANEL_ROWS = 2 * (FRAME_ROWS + 3)
_MOST_REASON_ROWS = 2
_LEAST_WRITING_ROWS_WITH_HISTORY = 13
_USUAL_WRITING_ROWS = 11
_MOST_WRITING_SHARE = 0.55
"""Largest share of the height for the curve; the panels below take the rest."""
_CORES_SHARE = 0.41
"""Share of the height that the cores may take before other panels share what is left."""
_LEAST_GRAPH_ROWS = 4
_MOST_GRAPH_ROWS = 9
"""Largest height of the strip's graph."""
_LIMIT_FROM_ROWS = 30
"""Height from which the strip shows the limit as well as the sentence on the speed."""
_FLAT_GAUGE_COLUMNS = 12

_Section = Callable[[int, int], list[Line]]
"""Function that draws a panel in a width and a number of rows; 0 for as many as it needs."""


def dashboard_lines(
    view: PerformanceView,
    width: int,
    height: int,
    glyphs: Glyphs,
    scale: GraphScale,
    note: str = "",
) -> list[Line]:
    """Draw the performance screen; it fills ``height`` rows, or more if it does not fit.

    Args:
        note: words on the last key; "" if there are none.
    """
    has_history = history_lines.has_history(view)
    columns = _columns(view, glyphs, width, height, has_history)
    needed = _rows_needed(columns, width)
    if len(columns) > 1 and has_history and height - needed < _LEAST_WRITING_ROWS_WITH_HISTORY:
        columns = _columns(view, glyphs, width, height, has_history=False)
        needed = _rows_needed(columns, width)
    widths = divided(width, len(columns))
    changes = change_lines(view, note, width - FRAME_COLUMNS, glyphs)
    n_free_rows = max(0, height - _LEAST_WRITING_ROWS - _LEAST_PANEL_ROWS)
    n_least_rows = _LEAST_WRITING_ROWS + min(len(changes), n_free_rows)
    if len(columns) == 1:
        n_writing_rows = min(_USUAL_WRITING_ROWS, max(n_least_rows, height // 2))
        return [
            *_writing(view, width, n_writing_rows, glyphs, scale, changes),
            *_stacked(columns[0], width, 0),
        ]
    n_writing_rows = max(n_least_rows, min(height - needed, int(_MOST_WRITING_SHARE * height)))
    n_panel_rows = max(height - n_writing_rows, _LEAST_PANEL_ROWS)
    blocks = [
        _stacked(stack, section_width, n_panel_rows)
        for stack, section_width in zip(columns, widths, strict=True)
    ]
    writing = _writing(view, width, n_writing_rows, glyphs, scale, changes)
    return [*writing, *side_by_side(blocks, widths)]


def _columns(
    view: PerformanceView, glyphs: Glyphs, width: int, height: int, has_history: bool
) -> list[list[_Section]]:
    """Return the panels of each column.

    Args:
        has_history: whether there is a panel for the history; else it is a line in the edge of
            another panel.
    """
    # A panel is drawn once for each size, though its rows are counted before they are shown.
    token = cache(partial(_token_panel, view, glyphs))
    memory = cache(partial(machine_lines.memory_panel, view, glyphs))
    n_cores_rows = int(_CORES_SHARE * height)
    cores = cache(partial(machine_lines.cores_panel, view, glyphs, n_usual_rows=n_cores_rows))
    reply = cache(partial(_reply_panel, view, glyphs, has_foot=not has_history))
    history: list[_Section] = []
    if has_history:
        history = [cache(partial(history_lines.history_panel, view, glyphs))]
    if width >= THREE_COLUMNS_FROM:
        return [[reply, memory], [token, *history], [cores]]
    if width >= TWO_COLUMNS_FROM:
        return [[reply, token, *history], [memory, cores]]
    return [[reply, memory, cores, token, *history]]


def _rows_needed(columns: Sequence[Sequence[_Section]], width: int) -> int:
    """Return the rows of the highest column."""
    widths = divided(width, len(columns))
    return max(
        sum(len(section(section_width, 0)) for section in stack)
        for stack, section_width in zip(columns, widths, strict=True)
    )


def _stacked(sections: Sequence[_Section], width: int, height: int) -> list[Line]:
    """Stack panels, sharing the height in proportion to their needs.

    Each panel has a row within its frame, if there is room.
    """
    if not height:
        return [row for section in sections for row in section(width, 0)]
    needs = [len(section(width, 0)) for section in sections]
    least = min(FRAME_ROWS + 1, height // len(sections))
    heights = [max(least, height * need // sum(needs)) for need in needs]
    n_left = height - sum(heights)
    if n_left > 0:
        heights[-1] += n_left
    else:
        heights[heights.index(max(heights))] += n_left
    return [
        row for section, rows in zip(sections, heights, strict=True) for row in section(width, rows)
    ]


def _writing(
    view: PerformanceView,
    width: int,
    height: int,
    glyphs: Glyphs,
    scale: GraphScale,
    changes: Sequence[Line],
) -> list[Line]:
    """Draw the speed as numbers at the left and a curve at the right, with words on changes below
    them."""
    inner = width - FRAME_COLUMNS
    reason = writing_lines.reason_lines(view, inner)[:_MOST_REASON_ROWS]
    rows = height - FRAME_ROWS - len(changes) - len(reason)
    columns = min(inner, _NUMBER_COLUMNS)
    speed = [
        *writing_lines.number_lines(view, columns, glyphs),
        *writing_lines.limit_lines(view, columns, glyphs),
    ]
    comparison = writing_lines.compared_lines(view, columns)
    gap = []
    if rows >= len(speed) + len(comparison) + 1:
        gap = [EMPTY]
    numbers = [fitted(row, columns) for row in [*speed, *gap, *comparison][:rows]]
    if len(numbers) < rows:
        numbers = [EMPTY, *numbers]
    if inner >= _GRAPH_FROM_COLUMNS:
        graph = writing_lines.graph_of(view)
        drawn = scale.draw(graph, inner - _NUMBER_COLUMNS - 2, rows, glyphs)
        numbers = side_by_side([numbers, drawn], [_NUMBER_COLUMNS + 2, inner - _NUMBER_COLUMNS - 2])
    if inner >= _GRAPH_FROM_COLUMNS:
        note = line(muted("tokens per second"))
    else:
        note = EMPTY
    foot = writing_lines.stutter_line(view, glyphs)
    body = [*numbers, *[EMPTY] * (rows - len(numbers)), *changes, *reason]
    return panel(writing_lines.name_of(view), body, width, glyphs, height, note, foot)


def _reply_panel(
    view: PerformanceView, glyphs: Glyphs, width: int, rows: int, has_foot: bool
) -> list[Line]:
    foot = EMPTY
    if has_foot:
        foot = history_lines.history_foot(view, width - FRAME_COLUMNS - 2, glyphs)
    return list(_panel_of_reply(view.figures.last_reply, glyphs, width, rows, foot))


@lru_cache(maxsize=4)  # it changes once a reply, and is drawn once a second
def _panel_of_reply(
    last_reply: TimeSpent | None, glyphs: Glyphs, width: int, rows: int, foot: Line
) -> tuple[Line, ...]:
    if last_reply is not None:
        note = line(muted(figures.seconds(last_reply.total_s)))
    else:
        note = EMPTY
    body = writing_lines.reply_lines(
        last_reply, width - FRAME_COLUMNS, rows - FRAME_ROWS if rows else 5, glyphs
    )
    return tuple(panel("Last reply", aired(body, rows), width, glyphs, rows, note, foot))


def _token_panel(view: PerformanceView, glyphs: Glyphs, width: int, rows: int) -> list[Line]:
    phases = writing_lines.phases_of(view)
    title = writing_lines.token_title(view)
    return list(_panel_of_token(title, phases, glyphs, width, rows))


@lru_cache(maxsize=4)  # it changes rarely, and is drawn once a second
def _panel_of_token(
    title: str, phases: tuple[PhaseCost, ...], glyphs: Glyphs, width: int, rows: int
) -> tuple[Line, ...]:
    body = writing_lines.token_lines(
        phases, width - FRAME_COLUMNS, rows - FRAME_ROWS if rows else 99, glyphs
    )
    total = line(muted(writing_lines.total_text(phases)))
    return tuple(panel(title, aired(body, rows), width, glyphs, rows, total))


def strip_lines(
    view: PerformanceView, width: int, height: int, glyphs: Glyphs, scale: GraphScale
) -> list[Line]:
    """Draw the strip as a column.

    Cores and memory are shortened if there is little room; the graph takes the remaining rows.
    """
    inner = width - FRAME_COLUMNS
    explanation = writing_lines.reason_lines(view, inner)
    if not explanation or height >= _LIMIT_FROM_ROWS:
        explanation = [*writing_lines.limit_lines(view, inner, glyphs), *explanation]
    numbers = [*writing_lines.number_lines(view, inner, glyphs), *explanation]
    n_free_rows = height - len(numbers) - _LEAST_GRAPH_ROWS - FRAME_ROWS
    cores = machine_lines.cores_lines(view, inner, 0, glyphs)
    memory = machine_lines.memory_lines(view, inner, glyphs)
    if len(cores) + len(memory) + 2 * FRAME_ROWS > n_free_rows:
        cores, memory = _in_short(view, inner, glyphs)
    panels = []
    for name, body, note in (
        ("Cores", cores, EMPTY),
        ("Memory", memory, machine_lines.memory_note(view)),
    ):
        if len(body) + FRAME_ROWS <= n_free_rows:
            panels += panel(name, body, width, glyphs, note=note)
            n_free_rows -= len(body) + FRAME_ROWS
    graph = writing_lines.graph_of(view)
    rows = min(_MOST_GRAPH_ROWS, _LEAST_GRAPH_ROWS + max(0, n_free_rows))
    drawn = scale.draw(graph, inner, rows, glyphs)
    foot = writing_lines.stutter_line(view, glyphs)[:1]
    return [
        *panel(writing_lines.name_of(view), [*numbers, *drawn], width, glyphs, foot=foot),
        *panels,
    ][:height]


def _in_short(view: PerformanceView, width: int, glyphs: Glyphs) -> tuple[list[Line], list[Line]]:
    """Return short lines: a character per core with the clock, and the memory's bar and legend."""
    if view.sample is None:
        return [], []
    signs = "".join(lines.level(load, glyphs) for load in view.sample.core_loads)[: width // 2]
    clock = machine_lines.clock_text(view.sample, " ")
    cells = machine_lines.memory_cells(view.sample, view.figures.facts, glyphs)
    bar = machine_lines.memory_lines(view, width, glyphs)[:1]
    cores = [line(Span(signs, SpanRole.ACCENT), muted(f"  {clock}"))]
    if view.slowed_by > 1:
        cores.append(machine_lines.screen_line(view, width))
    return cores, [*bar, *spread_lines([cells[0], cells[-1], *cells[1:-1]], width)]


def flat_lines(view: PerformanceView, width: int, glyphs: Glyphs) -> list[Line]:
    """Draw the strip as three lines, for narrow terminals."""
    tps = writing_lines.shown_tps(view)
    speed = [line(strong(lines.rate(tps)), muted(" tok/s"))]
    reason = writing_lines.reason_of(view)
    if reason.is_slow:
        speed.append(line(lines.caution(reason.text)))
    share = writing_lines.limit_share(view)
    if share is not None:
        drawn = gauge(share, _FLAT_GAUGE_COLUMNS, glyphs)
        speed.append((*drawn, Span(lines.percent(share, 4)), muted(" of the limit")))
    speed.append(line(strong(lines.milliseconds(tps)), muted(" ms a token")))
    machine = []
    memory = [machine_lines.screen_line(view, width)]
    sample = view.sample
    if sample is not None:
        cores = "".join(lines.level(load, glyphs) for load in sample.core_loads[:16])
        if cores:
            machine = [line(muted("cores "), cores)]
        else:
            machine = []
        clock = machine_lines.clock_text(sample, glyphs.between)
        if clock:
            machine += [line(muted(clock))]
        else:
            machine += []
        memory = machine_lines.memory_cells(sample, view.figures.facts, glyphs)
        machine.append(machine_lines.screen_line(view, width))
    rows = (
        spread_lines(cells, width, glyphs.between)[:1] or [EMPTY]
        for cells in (speed, machine, memory)
    )
    return [lines.clipped(row[0], width) for row in rows]

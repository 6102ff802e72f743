"""The performance screen as one picture: panels in one, two or three columns, with the curve above them."""

from __future__ import annotations

from collections.abc import Callable

from app.text import figures
from app.text.glyphs import Glyphs
from app.tui.drawing.graph import Scale, graph_lines
from app.tui.drawing.lines import EMPTY, Line, fitted, line, muted
from app.tui.drawing.panels import FRAME_COLUMNS, FRAME_ROWS, beside, divided, panel
from app.tui.speed import machine_lines, time_lines, writing_lines
from app.tui.speed.watch import PerformanceView

TWO_COLUMNS_FROM, THREE_COLUMNS_FROM = 76, 160
_NUMBER_COLUMNS = 27
_GRAPH_FROM_COLUMNS = 56
_LEAST_WRITING_ROWS, _USUAL_WRITING_ROWS = 9, 11
_MOST_WRITING_SHARE = 0.55
"""Of the height; what is left goes to the panels below."""

_Section = Callable[[int, int], list[Line]]
"""Draws a panel in a width, and in a number of rows: 0 for as many as it needs."""


def dashboard_lines(view: PerformanceView, width: int, height: int, glyphs: Glyphs, scale: Scale) -> list[Line]:
    """Draw everything in ``width`` columns; it fills ``height`` rows where it has room there, and is longer else."""
    reply, token, memory, cores = _sections(view, glyphs)
    if width >= THREE_COLUMNS_FROM:
        columns = [[reply, memory], [token], [cores]]
    elif width >= TWO_COLUMNS_FROM:
        columns = [[reply, token], [memory, cores]]
    else:
        columns = [[reply, memory, cores, token]]
    widths = divided(width, len(columns))
    needed = max(sum(len(section(each, 0)) for section in stack) for stack, each in zip(columns, widths, strict=True))
    if len(columns) == 1:
        above = min(_USUAL_WRITING_ROWS, max(_LEAST_WRITING_ROWS, height // 2))
        return [*_writing(view, width, above, glyphs, scale), *_stacked(columns[0], width, 0)]
    above = max(_LEAST_WRITING_ROWS, min(height - needed, int(_MOST_WRITING_SHARE * height)))
    below = max(height - above, 2 * (FRAME_ROWS + 3))
    blocks = [_stacked(stack, each, below) for stack, each in zip(columns, widths, strict=True)]
    return [*_writing(view, width, above, glyphs, scale), *beside(blocks, widths)]


def _stacked(sections: list[_Section], width: int, height: int) -> list[Line]:
    """Draw panels one below the other; their rows are shared out by what they need."""
    if not height:
        return [one for section in sections for one in section(width, 0)]
    needs = [len(section(width, 0)) for section in sections]
    heights = [height * need // sum(needs) for need in needs]
    heights[-1] += height - sum(heights)
    return [one for section, rows in zip(sections, heights, strict=True) for one in section(width, rows)]


def _aired(body: list[Line], rows: int) -> list[Line]:
    """Put a blank line between lines where there is room for that."""
    if len(body) < 2 or rows - FRAME_ROWS < 2 * len(body) - 1:
        return body
    return [one for number, each in enumerate(body) for one in ((EMPTY, each) if number else (each,))]


def _writing(view: PerformanceView, width: int, height: int, glyphs: Glyphs, scale: Scale) -> list[Line]:
    """Draw the speed: numbers at the left, the curve at the right."""
    inner, rows = width - FRAME_COLUMNS, height - FRAME_ROWS
    numbers = _numbers(view, min(inner, _NUMBER_COLUMNS), rows, glyphs)
    numbers = [EMPTY, *numbers] if len(numbers) < rows else numbers
    if inner >= _GRAPH_FROM_COLUMNS:
        graph = writing_lines.graph_of(view)
        drawn = graph_lines(graph, inner - _NUMBER_COLUMNS - 2, rows, glyphs, scale.follow(graph))
        numbers = beside([numbers, drawn], [_NUMBER_COLUMNS + 2, inner - _NUMBER_COLUMNS - 2])
    note = line(muted("tokens a second")) if inner >= _GRAPH_FROM_COLUMNS else EMPTY
    foot = writing_lines.stutter_line(view, glyphs)
    return panel(writing_lines.name_of(view), numbers, width, glyphs, height, note, foot)


def _numbers(view: PerformanceView, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    first = [*writing_lines.number_lines(view, width, glyphs), *writing_lines.limit_lines(view, width, glyphs)]
    rest = writing_lines.compared_lines(view, width)
    apart = [EMPTY] if rows >= len(first) + len(rest) + 1 else []
    return [fitted(one, width) for one in [*first, *apart, *rest][:rows]]


def _sections(view: PerformanceView, glyphs: Glyphs) -> tuple[_Section, _Section, _Section, _Section]:
    """Return how the panels below the curve are drawn."""

    def reply(width: int, rows: int) -> list[Line]:
        spent = view.figures.last_reply
        note = line(muted(figures.seconds(spent.total_s))) if spent is not None else EMPTY
        body = time_lines.reply_lines(spent, width - FRAME_COLUMNS, rows - FRAME_ROWS if rows else 5, glyphs)
        return panel("Last reply", _aired(body, rows), width, glyphs, rows, note)

    def token(width: int, rows: int) -> list[Line]:
        name, whole = time_lines.token_title(view)
        body = time_lines.token_lines(view, width - FRAME_COLUMNS, rows - FRAME_ROWS if rows else 99, glyphs)
        return panel(name, _aired(body, rows), width, glyphs, rows, line(muted(whole)))

    def memory(width: int, rows: int) -> list[Line]:
        body = machine_lines.memory_lines(view, width - FRAME_COLUMNS, glyphs)
        return panel("Memory", _aired(body, rows), width, glyphs, rows, machine_lines.memory_note(view))

    def cores(width: int, rows: int) -> list[Line]:
        body = machine_lines.cores_lines(view, width - FRAME_COLUMNS, max(0, rows - FRAME_ROWS), glyphs)
        return panel("Cores", body, width, glyphs, rows, machine_lines.cores_note(view, glyphs))

    return reply, token, memory, cores

"""Tables: columns as wide as their cells, narrower where the screen is, cells wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from markdown_it.tree import SyntaxTreeNode
from textual.content import Content

from app.tui.markdown.inline import inline_text
from app.tui.markdown.lines import NOTHING, Line

LEAST_COLUMN = 4
"""Least width of a column in cells; where one would be narrower, the table is drawn as a list of its cells."""

Cells = list[Content]


def table_lines(table: SyntaxTreeNode, width: int) -> list[Line]:
    """Return the lines of a table, none wider than ``width`` cells."""
    rows = [row for part in table.children for row in part.children]
    cells = [[inline_text(cell.children[0]) if cell.children else NOTHING for cell in row.children] for row in rows]
    cells[0] = [cell.stylize_before(".strong") for cell in cells[0]]
    aligns = [str(cell.attrs.get("style", "")).removeprefix("text-align:") for cell in rows[0].children]
    widths = _fitted(
        [max(cell.cell_length for cell in column) for column in zip_longest(*cells, fillvalue=NOTHING)], width
    )
    if widths is None:
        return _as_list(cells)
    drawn = [_row(row, widths, aligns) for row in cells]
    edge = [Line(_edge(widths))]
    # Rows of one line each need no lines between them.
    is_open = all(len(lines) == 1 for lines in drawn[1:])
    lines = drawn[0] + edge
    for number, row in enumerate(drawn[1:]):
        lines += row if is_open or not number else edge + row
    return lines


def _fitted(widths: list[int], width: int) -> list[int] | None:
    """Take cells from the widest columns until all fit; None where they cannot."""
    room = width - 3 * (len(widths) - 1) - 2
    if room < LEAST_COLUMN * len(widths):
        return None
    widths = [max(1, n) for n in widths]
    while (excess := sum(widths) - room) > 0:
        widest = max(widths)
        n_widest = widths.count(widest)
        below = max((n for n in widths if n < widest), default=0)
        taken = max(1, min(widest - below, excess // n_widest))
        for at in [at for at, n in enumerate(widths) if n == widest][:excess]:
            widths[at] -= taken
    return widths


def _row(row: Cells, widths: list[int], aligns: list[str]) -> list[Line]:
    wrapped = [cell.wrap(n) if cell else [] for cell, n in zip(row, widths, strict=False)]
    bar = Content(" │ ").stylize(".edge")
    return [
        Line(Content(" ") + bar.join(_aligned(*cell) for cell in zip(parts, widths, aligns, strict=False)))
        for parts in list(zip_longest(*wrapped, fillvalue=NOTHING)) or [(NOTHING,) * len(widths)]
    ]


def _aligned(text: Content, width: int, align: str) -> Content:
    free = max(0, width - text.cell_length)
    left = free if align == "right" else free // 2 if align == "center" else 0
    return text.pad_left(left).pad_right(free - left)


def _edge(widths: list[int]) -> Content:
    return Content(f"─{'─┼─'.join('─' * n for n in widths)}─").stylize(".edge")


def _as_list(cells: Sequence[Cells]) -> list[Line]:
    """One line a cell, under the name of its column."""
    names, *rows = cells
    lines: list[Line] = []
    for row in rows or [[NOTHING] * len(names)]:
        lines += [Line(name + Content(": ") + cell) for name, cell in zip(names, row, strict=False)]
        lines.append(Line())
    return lines[:-1]

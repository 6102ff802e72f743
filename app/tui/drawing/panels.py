"""Panels with a title in their frame, gauges, stacked bars, large digits and the program's name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from app.text.glyphs import Glyphs
from app.tui.drawing.lines import (
    EMPTY,
    Line,
    Span,
    SpanRole,
    clipped,
    fitted,
    joined,
    title,
    width_of,
)

FRAME_COLUMNS = 4
"""Columns that a panel's frame and its padding take."""
FRAME_ROWS = 2


def panel(
    name: str,
    body: Sequence[Line],
    width: int,
    glyphs: Glyphs,
    height: int = 0,
    note: Line = EMPTY,
    foot: Line = EMPTY,
    frame: SpanRole = SpanRole.FRAME,
    name_role: SpanRole = SpanRole.TITLE,
) -> list[Line]:
    """Draw a panel.

    Args:
        height: rows with the frame; 0 for as many as the body needs.
        note: text at the right of the upper edge, left out if there is no room.
        foot: text in the lower edge.
    """
    inner = max(0, width - FRAME_COLUMNS)
    if height:
        rows = max(0, height - FRAME_ROWS)
    else:
        rows = len(body)
    if not inner:
        return [clipped(row, width) for row in body[:rows]]
    top_left, top_right, bottom_left, bottom_right, horizontal, vertical = tuple(glyphs.frame)
    lines = [*body[:rows], *[EMPTY] * (rows - len(body))]
    side = Span(vertical, frame)
    title_line = EMPTY
    if name:
        title_line = (Span(name, name_role),)
    return [
        _edge(top_left, top_right, horizontal, title_line, note, width, frame),
        *(joined((side, Span(" "), *fitted(row, inner), Span(" "), side)) for row in lines),
        _edge(bottom_left, bottom_right, horizontal, foot, EMPTY, width, frame),
    ]


def _edge(
    start: str,
    end: str,
    horizontal: str,
    left_label: Line,
    right_label: Line,
    width: int,
    frame_role: SpanRole,
) -> Line:
    max_width = width - FRAME_COLUMNS
    left_label = clipped(left_label, max_width - 2)
    if not (
        width_of(right_label) and width_of(left_label) + width_of(right_label) + 5 <= max_width
    ):
        right_label = EMPTY
    left_text = _spaced(left_label)
    right_text = _spaced(right_label)
    rule = Span(
        horizontal * max(0, width - FRAME_COLUMNS - width_of(left_text) - width_of(right_text)),
        frame_role,
    )
    return joined(
        (
            Span(start + horizontal, frame_role),
            *left_text,
            rule,
            *right_text,
            Span(horizontal + end, frame_role),
        )
    )


def _spaced(label: Line) -> Line:
    if label:
        return (Span(" "), *label, Span(" "))
    return EMPTY


def side_by_side(blocks: Sequence[Sequence[Line]], widths: Sequence[int]) -> list[Line]:
    """Put blocks of lines side by side, each in its width, with blank lines below short blocks."""
    return [
        joined(
            span for cell, width in zip(lines, widths, strict=True) for span in fitted(cell, width)
        )
        for lines in zip_longest(*blocks, fillvalue=EMPTY)
    ]


def aired(body: list[Line], rows: int) -> list[Line]:
    """Put blank lines between the lines of a panel if its ``rows`` rows have room for them."""
    if len(body) < 2 or rows - FRAME_ROWS < 2 * len(body) - 1:
        return body
    spaced = [body[0]]
    for row in body[1:]:
        spaced += [EMPTY, row]
    return spaced


def divided(width: int, n_columns: int) -> list[int]:
    """Divide a width among ``n_columns`` columns; the first ones take the remainder."""
    least, remainder = divmod(width, n_columns)
    return [least + (index < remainder) for index in range(n_columns)]


def gauge(
    share: float,
    width: int,
    glyphs: Glyphs,
    role: SpanRole = SpanRole.ACCENT,
    empty: str | None = None,
) -> Line:
    """Draw a share as a bar; a share above 0.2 % fills at least half a cell.

    Args:
        share: 0 to 1.
        empty: character for the unfilled cells; None for that of ``glyphs``.
    """
    n_halves = round(2 * width * share)
    if share > 0.002:
        n_halves = max(1, n_halves)
    n_halves = min(2 * width, n_halves)
    filled = glyphs.gauge_full * (n_halves // 2) + glyphs.gauge_half * (n_halves % 2)
    if empty is None:
        empty = glyphs.gauge_empty
    unfilled = empty * (width - len(filled))
    return joined((Span(filled, role), Span(unfilled, SpanRole.UNFILLED)))


def cells_of(amounts: Sequence[float], width: int) -> list[int]:
    """Divide the cells of a bar by amounts.

    An amount above zero gets at least one cell if there is room. The largest amount absorbs
    rounding errors.
    """
    total = sum(amounts)
    if total <= 0 or width < 1:
        return [0] * len(amounts)
    if width >= 2 * len(amounts):
        min_cells = 1
    else:
        min_cells = 0
    cells = [
        max(min_cells, round(width * amount / total)) if amount > 0 else 0 for amount in amounts
    ]
    while sum(cells) != width:
        largest = cells.index(max(cells))
        if sum(cells) < width:
            cells[largest] += 1
        else:
            cells[largest] += -1
    return cells


def stacked(areas: Sequence[tuple[float, SpanRole]], width: int, glyphs: Glyphs) -> Line:
    """Draw areas of a whole as one bar, told apart by filling and by colour."""
    cells = cells_of([amount for amount, _ in areas], width)
    return joined(
        Span(part_glyph(index, glyphs) * n_cells, role)
        for index, (n_cells, (_, role)) in enumerate(zip(cells, areas, strict=True))
    )


def part_glyph(index: int, glyphs: Glyphs) -> str:
    """Return the character of an area of a stacked bar, for its legend."""
    return glyphs.parts[index % len(glyphs.parts)]


_DOTS = {
    "0": ("###", "# #", "# #", "# #", "###"),
    "1": (" # ", "## ", " # ", " # ", "###"),
    "2": ("###", "  #", "###", "#  ", "###"),
    "3": ("###", "  #", "###", "  #", "###"),
    "4": ("# #", "# #", "###", "  #", "  #"),
    "5": ("###", "#  ", "###", "  #", "###"),
    "6": ("###", "#  ", "###", "# #", "###"),
    "7": ("###", "  #", "  #", "  #", "  #"),
    "8": ("###", "# #", "###", "# #", "###"),
    "9": ("###", "# #", "###", "  #", "###"),
    "-": ("   ", "   ", "###", "   ", "   "),
    ".": (" ", " ", " ", " ", "#"),
    " ": ("   ", "   ", "   ", "   ", "   "),
}
NAME = "jalopy"
_LETTERS = {
    "j": ("  #", "   ", "  #", "  #", "  #", "  #", "# #", "###"),
    "a": ("    ", "    ", "####", "  ##", "#  #", "####", "    ", "    "),
    "l": ("# ", "# ", "# ", "# ", "# ", "##", "  ", "  "),
    "o": ("    ", "    ", "####", "#  #", "#  #", "####", "    ", "    "),
    "p": ("    ", "    ", "####", "#  #", "#  #", "####", "#   ", "#   "),
    "y": ("    ", "    ", "#  #", "#  #", "#  #", "####", "   #", "####"),
}


def big_digits(number: str, glyphs: Glyphs) -> list[str]:
    """Draw a number in three rows of equal width, without characters that have no large form."""
    if not glyphs.halves:
        return ["", number, ""]
    return half_blocks([_DOTS[sign] for sign in number if sign in _DOTS], glyphs)


def word_mark(glyphs: Glyphs) -> list[Line]:
    """Draw the program's name in four rows, or in one if the terminal has no half blocks."""
    if not glyphs.halves:
        return [(title(NAME),)]
    return [
        (Span(row, SpanRole.WRITING),)
        for row in half_blocks([_LETTERS[letter] for letter in NAME], glyphs)
    ]


def half_blocks(letters: Sequence[Sequence[str]], glyphs: Glyphs) -> list[str]:
    """Draw letters made of dots side by side, two rows of dots in one row of text."""
    dots = [" ".join(rows) for rows in zip(*letters, strict=True)]
    dots += [" " * len(dots[0])] * (len(dots) % 2)
    return [
        _row(upper, lower, glyphs.halves)
        for upper, lower in zip(dots[::2], dots[1::2], strict=True)
    ]


def _row(upper: str, lower: str, halves: str) -> str:
    full, top, bottom = tuple(halves)
    shapes = {("#", "#"): full, ("#", " "): top, (" ", "#"): bottom}
    return "".join(shapes.get(pair, " ") for pair in zip(upper, lower, strict=True))

"""Panels with a title in their frame, side by side too; gauges; large digits and the program's
name."""

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
"""Of a panel's width, those that its frame and the blanks next to it take."""
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
    """Draw a panel, note in its upper edge and foot in its lower one, in ``height`` rows or as many
    as it needs."""
    inner = max(0, width - FRAME_COLUMNS)
    if height:
        rows = max(0, height - FRAME_ROWS)
    else:
        rows = len(body)
    if not inner:
        return [clipped(one, width) for one in body[:rows]]
    upper_left, upper_right, lower_left, lower_right, across, upright = tuple(glyphs.frame)
    shown = [*body[:rows], *[EMPTY] * (rows - len(body))]
    side = Span(upright, frame)
    return [
        _edge(
            upper_left,
            upper_right,
            across,
            (Span(name, name_role),) if name else EMPTY,
            note,
            width,
            frame,
        ),
        *(joined((side, Span(" "), *fitted(one, inner), Span(" "), side)) for one in shown),
        _edge(lower_left, lower_right, across, foot, EMPTY, width, frame),
    ]


def _edge(
    first: str, last: str, across: str, left: Line, right: Line, width: int, frame: SpanRole
) -> Line:
    room = width - FRAME_COLUMNS
    left = clipped(left, room - 2)
    if not (width_of(right) and width_of(left) + width_of(right) + 5 <= room):
        right = EMPTY
    beginning, ending = ((Span(" "), *one, Span(" ")) if one else EMPTY for one in (left, right))
    rest = Span(
        across * max(0, width - FRAME_COLUMNS - width_of(beginning) - width_of(ending)), frame
    )
    return joined(
        (Span(first + across, frame), *beginning, rest, *ending, Span(across + last, frame))
    )


def side_by_side(blocks: Sequence[Sequence[Line]], widths: Sequence[int]) -> list[Line]:
    """Put blocks of lines side by side, each in its width; they end at the same row."""
    return [
        joined(span for one, width in zip(row, widths, strict=True) for span in fitted(one, width))
        for row in zip_longest(*blocks, fillvalue=EMPTY)
    ]


def aired(body: list[Line], rows: int) -> list[Line]:
    """Put a blank line between the lines of a panel of ``rows`` rows where there is room for
    that."""
    if len(body) < 2 or rows - FRAME_ROWS < 2 * len(body) - 1:
        return body
    return [
        one for number, each in enumerate(body) for one in ((EMPTY, each) if number else (each,))
    ]


def divided(width: int, n: int) -> list[int]:
    """Divide a width among ``n`` columns; the first ones take what is left over."""
    return [width // n + (1 if number < width % n else 0) for number in range(n)]


def gauge(
    share: float,
    width: int,
    glyphs: Glyphs,
    role: SpanRole = SpanRole.ACCENT,
    empty: str | None = None,
) -> Line:
    """Draw a share of a whole; more than nothing fills at least half a cell.

    ``empty`` fills the rest.
    """
    halves = min(2 * width, max(1 if share > 0.002 else 0, round(2 * width * share)))
    filled = glyphs.gauge_full * (halves // 2) + glyphs.gauge_half * (halves % 2)
    rest = (glyphs.gauge_empty if empty is None else empty) * (width - len(filled))
    return joined((Span(filled, role), Span(rest, SpanRole.UNFILLED)))


def cells_of(amounts: Sequence[float], width: int) -> list[int]:
    """Share out the cells of a bar: one at least for what is more than nothing, rounded at the
    largest part's cost."""
    total = sum(amounts)
    if total <= 0 or width < 1:
        return [0] * len(amounts)
    if width >= 2 * len(amounts):
        least = 1
    else:
        least = 0
    cells = [max(least, round(width * amount / total)) if amount > 0 else 0 for amount in amounts]
    while sum(cells) != width:
        largest = cells.index(max(cells))
        if sum(cells) < width:
            cells[largest] += 1
        else:
            cells[largest] += -1
    return cells


def stacked(parts: Sequence[tuple[float, SpanRole]], width: int, glyphs: Glyphs) -> Line:
    """Draw parts of a whole in one bar; their heights tell them from each other where there is no
    colour."""
    cells = cells_of([amount for amount, _ in parts], width)
    return joined(
        Span(part_glyph(number, glyphs) * n, role)
        for number, (n, (_, role)) in enumerate(zip(cells, parts, strict=True))
    )


def part_glyph(number: int, glyphs: Glyphs) -> str:
    """Return what a part of a stacked bar is drawn with, for its legend."""
    return glyphs.parts[number % len(glyphs.parts)]


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
    """Draw a number in three rows of equal width; signs that it has no dots for are left out."""
    if not glyphs.halves:
        return ["", number, ""]
    return half_blocks([_DOTS[sign] for sign in number if sign in _DOTS], glyphs)


def word_mark(glyphs: Glyphs) -> list[Line]:
    """Draw the name in four rows; in one where the terminal has no half blocks."""
    if not glyphs.halves:
        return [(title(NAME),)]
    return [
        (Span(row, SpanRole.WRITING),)
        for row in half_blocks([_LETTERS[letter] for letter in NAME], glyphs)
    ]


def half_blocks(signs: Sequence[Sequence[str]], glyphs: Glyphs) -> list[str]:
    """Draw signs of dots side by side, two rows of dots in one of text."""
    dots = [" ".join(rows) for rows in zip(*signs, strict=True)]
    dots += [" " * len(dots[0])] * (len(dots) % 2)
    return [
        _row(upper, lower, glyphs.halves)
        for upper, lower in zip(dots[::2], dots[1::2], strict=True)
    ]


def _row(upper: str, lower: str, halves: str) -> str:
    both, top, bottom = tuple(halves)
    shapes = {("#", "#"): both, ("#", " "): top, (" ", "#"): bottom}
    return "".join(shapes.get(pair, " ") for pair in zip(upper, lower, strict=True))

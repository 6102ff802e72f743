"""Panels: lines in a frame that bears their title, and several panels side by side."""

from __future__ import annotations

from collections.abc import Sequence

from app.text.glyphs import Glyphs
from app.tui.drawing.lines import EMPTY, Line, Role, Span, clipped, fitted, joined, width_of

FRAME_COLUMNS = 4
"""Of a panel's width, those that its frame and the blanks beside it take."""
FRAME_ROWS = 2


def panel(
    name: str,
    body: Sequence[Line],
    width: int,
    glyphs: Glyphs,
    height: int = 0,
    note: Line = EMPTY,
    foot: Line = EMPTY,
    frame: Role = Role.FRAME,
    name_role: Role = Role.TITLE,
) -> list[Line]:
    """Draw a panel, note in its upper edge and foot in its lower one, in ``height`` rows or as many as it needs."""
    inner, rows = max(0, width - FRAME_COLUMNS), max(0, height - FRAME_ROWS) if height else len(body)
    if not inner:
        return [clipped(one, width) for one in body[:rows]]
    upper_left, upper_right, lower_left, lower_right, across, upright = tuple(glyphs.frame)
    shown = [*body[:rows], *[EMPTY] * (rows - len(body))]
    side = Span(upright, frame)
    return [
        _edge(upper_left, upper_right, across, (Span(name, name_role),) if name else EMPTY, note, width, frame),
        *(joined((side, Span(" "), *fitted(one, inner), Span(" "), side)) for one in shown),
        _edge(lower_left, lower_right, across, foot, EMPTY, width, frame),
    ]


def _edge(first: str, last: str, across: str, left: Line, right: Line, width: int, frame: Role) -> Line:
    room = width - FRAME_COLUMNS
    left = clipped(left, room - 2)
    right = right if width_of(right) and width_of(left) + width_of(right) + 5 <= room else EMPTY
    beginning, ending = ((Span(" "), *one, Span(" ")) if one else EMPTY for one in (left, right))
    rest = Span(across * max(0, width - FRAME_COLUMNS - width_of(beginning) - width_of(ending)), frame)
    return joined((Span(first + across, frame), *beginning, rest, *ending, Span(across + last, frame)))


def beside(blocks: Sequence[Sequence[Line]], widths: Sequence[int]) -> list[Line]:
    """Put blocks of lines side by side, each in its width; they end at the same row."""
    rows = max((len(block) for block in blocks), default=0)
    return [
        joined(
            span
            for block, width in zip(blocks, widths, strict=True)
            for span in fitted(block[row] if row < len(block) else EMPTY, width)
        )
        for row in range(rows)
    ]


def divided(width: int, n: int) -> list[int]:
    """Divide a width among ``n`` columns; the first ones take what is left over."""
    return [width // n + (1 if number < width % n else 0) for number in range(n)]

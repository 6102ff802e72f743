"""Lines as plain values: spans of text, each with a role that a widget may colour.

Colour only repeats what text and shape say.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import partial
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from app.text import figures
from app.text.glyphs import Glyphs


class SpanRole(str, Enum):
    """Role of a span, which decides its colour. A colour means the same on every screen."""

    PLAIN = "plain"
    MUTED = "muted"
    """Labels, units and unimportant text."""
    STRONG = "strong"
    """Figures and chosen names."""
    TITLE = "title"
    FRAME = "frame"
    UNFILLED = "unfilled"
    ACCENT = "accent"
    """Keys and the item under the cursor."""
    GOOD = "good"
    CAUTION = "caution"
    """Text that deserves attention."""
    TROUBLE = "trouble"
    READING = "reading"
    """The prompt and the user's text."""
    WRITING = "writing"
    """The reply and the model's text."""
    LEVEL_0 = "level-0"
    """Worst of five levels of a share, from trouble to good."""
    LEVEL_1 = "level-1"
    LEVEL_2 = "level-2"
    LEVEL_3 = "level-3"
    LEVEL_4 = "level-4"
    AREA_0 = "area-0"
    """Worst of the same five levels below a curve, in fainter colours."""
    AREA_1 = "area-1"
    AREA_2 = "area-2"
    AREA_3 = "area-3"
    AREA_4 = "area-4"
    AREA_PLAIN = "area-plain"


LEVELS = (SpanRole.LEVEL_0, SpanRole.LEVEL_1, SpanRole.LEVEL_2, SpanRole.LEVEL_3, SpanRole.LEVEL_4)
_AREAS = dict(
    zip(
        LEVELS,
        (SpanRole.AREA_0, SpanRole.AREA_1, SpanRole.AREA_2, SpanRole.AREA_3, SpanRole.AREA_4),
        strict=True,
    )
)
_WORST = 0.4
_BEST = 0.9
"""Shares of the usual speed that have the colours of trouble and of good."""


class Span(NamedTuple):
    """Run of text with one role."""

    text: str
    role: SpanRole = SpanRole.PLAIN


muted = partial(Span, role=SpanRole.MUTED)
strong = partial(Span, role=SpanRole.STRONG)
title = partial(Span, role=SpanRole.TITLE)
caution = partial(Span, role=SpanRole.CAUTION)

Line = tuple[Span, ...]
EMPTY: Line = ()


def level_of(share: float) -> SpanRole:
    """Return the level of a share of the usual speed."""
    step = (share - _WORST) / (_BEST - _WORST) * (len(LEVELS) - 1)
    return LEVELS[min(len(LEVELS) - 1, max(0, round(step)))]


def area_of(role: SpanRole) -> SpanRole:
    """Return the role of the area below a curve."""
    return _AREAS.get(role, SpanRole.AREA_PLAIN)


def line(*items: str | Span) -> Line:
    """Return a line of texts and spans, without the empty ones."""
    spans = []
    for item in items:
        if isinstance(item, Span):
            spans.append(item)
        elif item:
            spans.append(Span(item))
    return tuple(spans)


def text_of(text_line: Line) -> str:
    """Return the text of a line without roles."""
    return "".join(span.text for span in text_line)


def width_of(text_line: Line) -> int:
    """Return the width of a line in columns."""
    return sum(cell_len(span.text) for span in text_line)


def rate(tps: float) -> str:
    """Return a rate in five columns; "-" if it is unknown."""
    if tps > 0:
        return f"{figures.rate(tps):>5}"
    return "    -"


def milliseconds(tps: float) -> str:
    """Return the milliseconds per token in five columns; "-" if unknown."""
    if tps <= 0:
        return "    -"
    ms = 1000 / tps
    if ms < 99.95:
        return f"{ms:5.1f}"
    return f"{ms:5.0f}"


def percent(share: float, width: int) -> str:
    """Return a share as a percentage, the number in ``width`` columns."""
    return f"{100 * share:{width}.0f} %"


def spread_lines(cells: Iterable[Line], width: int, separator: str = "  ") -> list[Line]:
    """Join short lines into as few lines as possible, without breaking any."""
    lines: list[Line] = []
    for cell in filter(None, cells):
        if lines and width_of(lines[-1]) + len(separator) + width_of(cell) <= width:
            lines[-1] = (*lines[-1], Span(separator), *cell)
        else:
            lines.append(cell)
    return lines


def apart(left_line: Line, right_line: Line, width: int) -> Line:
    """Align one line left and one right, and cut the left one if both are too long."""
    left_width = width - width_of(right_line) - 1
    if not right_line or left_width <= 0:
        return fitted(left_line, width)
    return (*fitted(left_line, left_width), Span(" "), *right_line)


def clipped(text_line: Line, width: int) -> Line:
    """Cut a line to a width."""
    if width_of(text_line) <= width:
        return text_line
    spans: list[Span] = []
    for span in text_line:
        if width <= 0:
            break
        if cell_len(span.text) <= width:
            text = span.text
        else:
            text = set_cell_size(span.text, width)
        spans.append(Span(text, span.role))
        width -= cell_len(text)
    return tuple(spans)


def fitted(text_line: Line, width: int) -> Line:
    """Cut a line to a width, or pad it with blanks."""
    n_missing = width - width_of(text_line)
    if n_missing < 0:
        return clipped(text_line, width)
    if n_missing:
        return (*text_line, Span(" " * n_missing))
    return text_line


def joined(spans: Iterable[Span]) -> Line:
    """Merge adjacent spans of the same role."""
    merged: list[Span] = []
    merged_text = ""
    merged_role = SpanRole.PLAIN
    for text, role in spans:
        if role is merged_role:
            merged_text += text
        elif text:
            if merged_text:
                merged.append(Span(merged_text, merged_role))
            merged_text = text
            merged_role = role
    if merged_text:
        merged.append(Span(merged_text, merged_role))
    return tuple(merged)


def level(load: float, glyphs: Glyphs) -> str:
    """Return a character for a load; an idle core has a low mark, not a blank."""
    steps = len(glyphs.levels) - 1
    return glyphs.levels[min(steps, max(1, round(load * steps)))]

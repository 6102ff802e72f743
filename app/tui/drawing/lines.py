"""Lines as plain values: spans of text, each with a role that a widget may colour.

Shape says it first.
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
    """Kind of a span, by which it is coloured; every colour means the same on every screen."""

    PLAIN = "plain"
    MUTED = "muted"
    """Labels, units, what is known already."""
    STRONG = "strong"
    """Figures, and names of what is chosen."""
    TITLE = "title"
    FRAME = "frame"
    UNFILLED = "unfilled"
    ACCENT = "accent"
    """Keys, and what the cursor is on."""
    GOOD = "good"
    CAUTION = "caution"
    """Text that deserves attention."""
    TROUBLE = "trouble"
    READING = "reading"
    """The prompt, and what belongs to the user."""
    WRITING = "writing"
    """The reply, and what belongs to the model."""
    LEVEL_0 = "level-0"
    """From here to ``LEVEL_4``, how good a share is: from trouble over caution to good."""
    LEVEL_1 = "level-1"
    LEVEL_2 = "level-2"
    LEVEL_3 = "level-3"
    LEVEL_4 = "level-4"
    AREA_0 = "area-0"
    """From here to ``AREA_4``, the same under a curve, where the colour is fainter."""
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
_WORST = 0.3
_BEST = 0.8
"""Shares of the machine's limit at which the colour is that of trouble, and that of good."""


class Span(NamedTuple):
    """A run of text in one role."""

    text: str
    role: SpanRole = SpanRole.PLAIN


muted = partial(Span, role=SpanRole.MUTED)
strong = partial(Span, role=SpanRole.STRONG)
title = partial(Span, role=SpanRole.TITLE)
caution = partial(Span, role=SpanRole.CAUTION)

Line = tuple[Span, ...]
EMPTY: Line = ()


def level_of(share: float) -> SpanRole:
    """Return the role that says how good a share of the machine's limit is."""
    step = (share - _WORST) / (_BEST - _WORST) * (len(LEVELS) - 1)
    return LEVELS[min(len(LEVELS) - 1, max(0, round(step)))]


def area_of(role: SpanRole) -> SpanRole:
    """Return the role of what is under a curve."""
    return _AREAS.get(role, SpanRole.AREA_PLAIN)


def line(*parts: str | Span) -> Line:
    """Return a line of texts and spans."""
    return tuple(part if isinstance(part, Span) else Span(part) for part in parts if part)


def text_of(one: Line) -> str:
    """Return the text alone."""
    return "".join(span.text for span in one)


def width_of(one: Line) -> int:
    """Return the columns that a line takes."""
    return sum(cell_len(span.text) for span in one)


def rate(tps: float) -> str:
    """Write a rate in a fixed width; "-" for unknown."""
    return f"{figures.rate(tps) if tps > 0 else '-':>5}"


def milliseconds(tps: float) -> str:
    """Write the time of a token in a fixed width."""
    if tps <= 0:
        return "    -"
    ms = 1000 / tps
    if ms < 99.95:
        return f"{ms:5.1f}"
    return f"{ms:5.0f}"


def percent(share: float, width: int) -> str:
    """Write a share in a fixed width, with its sign after a space."""
    return f"{100 * share:{width}.0f} %"


def spread_lines(parts: Iterable[Line], width: int, between: str = "  ") -> list[Line]:
    """Put short lines next to each other into as few lines as they need, whole."""
    lines: list[Line] = []
    for part in filter(None, parts):
        if lines and width_of(lines[-1]) + len(between) + width_of(part) <= width:
            lines[-1] = (*lines[-1], Span(between), *part)
        else:
            lines.append(part)
    return lines


def apart(left: Line, right: Line, width: int) -> Line:
    """Put one text at the left end of a line and one at its right; what is too long is cut at the
    left one's end."""
    room = width - width_of(right) - 1
    if not right or room <= 0:
        return fitted(left, width)
    return (*fitted(left, room), Span(" "), *right)


def clipped(one: Line, width: int) -> Line:
    """Cut a line at a width."""
    if width_of(one) <= width:
        return one
    kept: list[Span] = []
    for span in one:
        if width <= 0:
            break
        if cell_len(span.text) <= width:
            text = span.text
        else:
            text = set_cell_size(span.text, width)
        kept.append(Span(text, span.role))
        width -= cell_len(text)
    return tuple(kept)


def fitted(one: Line, width: int) -> Line:
    """Cut a line at a width, or fill it up with blanks."""
    missing = width - width_of(one)
    if missing < 0:
        return clipped(one, width)
    if missing:
        return (*one, Span(" " * missing))
    return one


def joined(spans: Iterable[Span]) -> Line:
    """Join neighbours of the same role."""
    found: list[Span] = []
    for span in spans:
        if found and found[-1].role is span.role:
            found[-1] = Span(found[-1].text + span.text, span.role)
        elif span.text:
            found.append(span)
    return tuple(found)


def level(load: float, glyphs: Glyphs) -> str:
    """Return one character for a load: an idle core is a low mark, never a blank."""
    steps = len(glyphs.levels) - 1
    return glyphs.levels[min(steps, max(1, round(load * steps)))]

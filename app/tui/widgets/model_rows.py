"""Models as rows of a table: whether each fits, as a badge, and how fast it would write, as a bar
and in words."""

from __future__ import annotations

import math
import textwrap

from app.models.library import list_rows as rows
from app.models.library.listing import ModelEntry, Outlook
from app.text import figures
from app.text.glyphs import Glyphs, cut
from app.tui.drawing.lines import Line, Span, SpanRole, fitted, line, muted, strong
from app.tui.drawing.panels import gauge

_FITS = {
    "yes": ("fits", SpanRole.GOOD),
    "tight": ("tight", SpanRole.CAUTION),
    "no": ("too large", SpanRole.TROUBLE),
}
_PACES = (
    (1.5, "far slower than you read", SpanRole.LEVEL_0),
    (4.0, "slower than you read", SpanRole.LEVEL_1),
    (8.0, "about as fast as you read", SpanRole.LEVEL_3),
    (20.0, "faster than you read", SpanRole.LEVEL_4),
    (math.inf, "far faster than you read", SpanRole.LEVEL_4),
)
"""Tokens a second up to which a speed feels like this, and its colour."""
_FASTEST_TPS = 40.0
"""Fills the bar; its scale is that of a logarithm, as the eye counts."""
_LEAST_TITLE = 12
_MOST_TITLE = 40
_BADGE = 11
_RATE = 6
_PACE = 26
_MOST_BAR = 30
_TYPE_FROM = 44
_BAR_FROM = 66
_CONTEXT_FROM = 118
_PACE_FROM = 92
"""Widths from which a column is shown."""


def heading(columns: int) -> str:
    """Write the line above the rows."""
    cells = [f"{'name':<{_title_width(columns)}}"]
    if columns >= _TYPE_FROM:
        cells.append(f"{'type':<7}{'size':>7}")
    cells.append(f"{'  fits':<{_BADGE}}")
    cells.append(
        f"{'writes tok/s':<{_bar_width(columns) + _RATE}}"
        if _bar_width(columns)
        else f"{'tok/s':>{_RATE}}"
    )
    if columns >= _PACE_FROM:
        cells.append(f"{'':<{_PACE}}")
    if columns >= _CONTEXT_FROM:
        cells.append(f"{'context':>9}")
    return "  ".join(cells).rstrip()


def row(entry: ModelEntry, columns: int, glyphs: Glyphs) -> Line:
    """Write one model in ``columns`` columns; one that cannot be opened says why."""
    width = _title_width(columns)
    name = cut(entry.title, width).ljust(width)
    if entry.reason:
        return line(muted(name), muted("  " + cut(entry.reason, max(10, columns - width - 2))))
    if entry.served is not None:
        return line(
            strong(name), muted(cut(f"  computed by {entry.place}", max(10, columns - width)))
        )
    outlook = entry.outlook
    cells = [line(strong(name) if entry.is_here else name)]
    if columns >= _TYPE_FROM:
        size = f"{'' if entry.is_here else rows.ESTIMATE}{figures.size(entry.size_bytes)}"
        cells.append(line(muted(f"{entry.quantization:<7}"[:7]), f"{size:>7}"))
    cells.append(fitted(badge(outlook, glyphs), _BADGE))
    cells.append(_speed(outlook, _bar_width(columns), glyphs))
    if columns >= _PACE_FROM:
        cells.append(line(muted(f"{pace(outlook):<{_PACE}}")))
    if columns >= _CONTEXT_FROM:
        cells.append(
            line(
                muted(f"{rows.context(outlook, entry.context_length) if entry.is_here else '':>9}")
            )
        )
    return tuple(span for cell in cells for span in (*cell, Span("  ")))[:-1]


def badge(outlook: Outlook | None, glyphs: Glyphs) -> Line:
    """Say whether it fits."""
    if outlook is None:
        return line(muted("-"))
    words, role = _FITS[outlook.verdict]
    sign = {
        SpanRole.GOOD: glyphs.good,
        SpanRole.CAUTION: glyphs.caution,
        SpanRole.TROUBLE: glyphs.trouble,
    }[role]
    return line(Span(f"{sign} {words}", role))


def pace(outlook: Outlook | None) -> str:
    """Say how a speed feels to somebody who reads along."""
    if outlook is None or not outlook.decode_tps:
        return ""
    if outlook.verdict == "no":
        return "waits for the disk"
    return _pace_of(outlook.decode_tps)[0]


def _pace_of(tps: float) -> tuple[str, SpanRole]:
    return next((words, level) for most, words, level in _PACES if tps < most)


def speed_line(tps: float | None, columns: int, glyphs: Glyphs) -> Line:
    """Write an estimated speed: as a number, a bar and in words, as far as there is room."""
    if not tps:
        return line(muted("-"))
    rate = strong(f"{f'~{figures.rate(tps)}':>{_RATE}}")
    has_words = columns >= _PACE + _RATE + 12
    cells = max(0, min(_MOST_BAR, columns - _RATE - (_PACE + 2 if has_words else 1)))
    return (
        *_bar(tps, cells, glyphs),
        rate,
        *([muted(f"  {_pace_of(tps)[0]}")] if has_words else []),
    )


def _bar(tps: float, cells: int, glyphs: Glyphs) -> Line:
    return gauge(
        min(1.0, math.log1p(tps) / math.log1p(_FASTEST_TPS)), cells, glyphs, _pace_of(tps)[1]
    )


def _speed(outlook: Outlook | None, cells: int, glyphs: Glyphs) -> Line:
    if outlook is not None and outlook.decode_tps:
        tps = outlook.decode_tps
    else:
        tps = 0.0
    text = f"{rows.speed(outlook, tps) if outlook is not None else '-':>{_RATE}}"
    if cells:
        return (*_bar(tps, cells, glyphs), strong(text))
    return line(strong(text))


def _title_width(columns: int) -> int:
    fixed = _BADGE + _RATE + 4 + _bar_width(columns)
    if columns >= _TYPE_FROM:
        fixed += 16
    else:
        fixed += 0
    if columns >= _PACE_FROM:
        fixed += _PACE + 2
    else:
        fixed += 0
    if columns >= _CONTEXT_FROM:
        fixed += 11
    else:
        fixed += 0
    return min(_MOST_TITLE, max(_LEAST_TITLE, columns - fixed))


def _bar_width(columns: int) -> int:
    if columns < _PACE_FROM:
        if columns >= _BAR_FROM:
            return 8
        return 0
    return min(_MOST_BAR, 12 + max(0, columns - _CONTEXT_FROM) // 2)


def details(entry: ModelEntry, columns: int, glyphs: Glyphs) -> list[Line]:
    """Write what the columns have no room for: what to expect first, where it is kept last."""
    where, *rest = rows.details(entry)
    outlook = entry.outlook
    if outlook is not None:
        first = [(*badge(outlook, glyphs), Span("  "), muted(pace(outlook)))]
    else:
        first = []
    found = [line(part) for text in reversed(rest) for part in textwrap.wrap(text, columns)]
    return [*first, *found, *(line(muted(part)) for part in textwrap.wrap(where, columns))]

"""Rows of the list of models: a badge that says whether the model fits, and a bar of its speed."""

from __future__ import annotations

import math
import textwrap

from app.machine.sensors.reply_history import Basis
from app.models.library import list_rows as rows
from app.models.library.listing import ModelEntry, Outlook
from app.models.library.speed import ESTIMATE, speed_figure
from app.text import figures
from app.text.glyphs import Glyphs, cut
from app.tui.drawing.lines import EMPTY, Line, Span, SpanRole, fitted, line, muted, strong
from app.tui.drawing.panels import gauge

_PACES = (
    (1.5, "far slower than you read", SpanRole.LEVEL_0),
    (4.0, "slower than you read", SpanRole.LEVEL_1),
    (8.0, "about as fast as you read", SpanRole.ACCENT),
    (20.0, "faster than you read", SpanRole.ACCENT),
    (math.inf, "far faster than you read", SpanRole.ACCENT),
)
"""Speeds in words: limit in tokens per second, words and colour."""
_FULL_BAR_TPS = 40.0
"""Tokens per second of a full bar. The scale is logarithmic."""
_LEAST_TITLE_COLUMNS = 12
_MAX_TITLE_COLUMNS = 36
_CONTEXT_COLUMNS = 11
_RATE_COLUMNS = 7
_PACE_COLUMNS = 26
_LABEL_COLUMNS = 11
_MAX_BAR_COLUMNS = 30
_BAR_COLUMNS = 8
_WIDE_BAR_COLUMNS = 12
_TYPE_FROM_COLUMNS = 44
_BAR_FROM_COLUMNS = 66
_STRENGTHS_FROM_COLUMNS = 84
_WIDE_BAR_FROM_COLUMNS = 120
"""Widths of the list from which a column is shown."""
_USUAL_TITLE_COLUMNS = 25
"""Width of a name where strengths are shown: that of the longest known model."""


def heading(columns: int) -> str:
    """Return the names of the columns."""
    bar_width = _bar_width(columns)
    strengths_width = _strengths_width(columns)
    cells = [f"{'name':<{_title_width(columns)}}"]
    if columns >= _TYPE_FROM_COLUMNS:
        cells.append(f"{'type':<7}{'size':>7}")
    cells.append(f"{'context':<{_CONTEXT_COLUMNS}}")
    if bar_width:
        cells.append(f"{'writes tok/s':<{bar_width + _RATE_COLUMNS}}")
    else:
        cells.append(f"{'tok/s':>{_RATE_COLUMNS}}")
    if strengths_width:
        cells.append("good at")
    return "  ".join(cells).rstrip()


def row(entry: ModelEntry, columns: int, glyphs: Glyphs) -> Line:
    """Return a model's row in ``columns`` columns, with the reason if it cannot be opened."""
    width = _title_width(columns)
    name = rows.title_cell(entry, width, glyphs)
    if entry.reason:
        return line(muted(name), muted("  " + cut(entry.reason, max(10, columns - width - 2))))
    if entry.served is not None:
        server = cut(f"  computed by {entry.place}", max(10, columns - width))
        return line(strong(name), muted(server))

    if entry.is_here:
        cells = [line(strong(name))]
        size = figures.size(entry.size_bytes)
    else:
        cells = [line(name)]
        size = f"{ESTIMATE}{figures.size(entry.download_bytes)}"
    if columns >= _TYPE_FROM_COLUMNS:
        cells.append(line(muted(f"{entry.quantization:<7}"[:7]), f"{size:>7}"))
    cells.append(fitted(badge(entry, glyphs) or _context(entry), _CONTEXT_COLUMNS))
    cells.append(_speed(entry.outlook, _bar_width(columns), glyphs))
    if strengths_width := _strengths_width(columns):
        cells.append(line(muted(cut(entry.good_at, strengths_width))))
    return tuple(span for cell in cells for span in (*cell, Span("  ")))[:-1]


def _context(entry: ModelEntry) -> Line:
    """Return the context that fits, and the trained one; nothing for models to download."""
    if not entry.is_here:
        return EMPTY
    return line(muted(rows.context(entry.outlook, entry.context_length)))


def badge(entry: ModelEntry, glyphs: Glyphs) -> Line:
    """Return what is special about a model: short memory, or advice to use it; else nothing."""
    verdict = entry.outlook.verdict if entry.outlook is not None else "yes"
    if verdict == "tight":
        return line(Span(f"{glyphs.caution} tight", SpanRole.CAUTION))
    if verdict == "no":
        return line(Span(f"{glyphs.trouble} too large", SpanRole.TROUBLE))
    if entry.is_advised:
        return line(Span("recommended", SpanRole.GOOD))
    return EMPTY


def pace(outlook: Outlook | None) -> str:
    """Return a speed in words, compared with reading; empty if it is unknown."""
    if outlook is None or not outlook.decode_tps:
        return ""
    if outlook.verdict == "no":
        return "waits for the disk"
    return _pace_of(outlook.decode_tps)[0]


def _pace_of(tps: float) -> tuple[str, SpanRole]:
    return next((words, level) for max_tps, words, level in _PACES if tps < max_tps)


def speed_line(tps: float | None, columns: int, glyphs: Glyphs) -> Line:
    """Return an estimated speed as a bar, a number and words, as far as there is room."""
    if not tps:
        return line(muted("-"))
    rate = strong(f"{speed_figure(tps, Basis.ESTIMATED):>{_RATE_COLUMNS}}")
    if columns >= _PACE_COLUMNS + _RATE_COLUMNS + 12:
        words = [muted(f"  {_pace_of(tps)[0]}")]
        room = columns - _RATE_COLUMNS - _PACE_COLUMNS - 2
    else:
        words = []
        room = columns - _RATE_COLUMNS - 1
    return (*_bar(tps, max(0, min(_MAX_BAR_COLUMNS, room)), glyphs), rate, *words)


def _bar(tps: float, cells: int, glyphs: Glyphs) -> Line:
    return gauge(
        min(1.0, math.log1p(tps) / math.log1p(_FULL_BAR_TPS)), cells, glyphs, _pace_of(tps)[1]
    )


def _speed(outlook: Outlook | None, cells: int, glyphs: Glyphs) -> Line:
    tps = 0.0
    text = "-"
    if outlook is not None:
        tps = outlook.decode_tps or 0.0
        text = rows.speed(tps, outlook.basis)
    rate = strong(f"{text:>{_RATE_COLUMNS}}")
    if cells:
        return (*_bar(tps, cells, glyphs), rate)
    return line(rate)


def _title_width(columns: int) -> int:
    room = columns - _fixed_width(columns)
    if _strengths_width(columns):
        return _USUAL_TITLE_COLUMNS
    return min(_MAX_TITLE_COLUMNS, max(_LEAST_TITLE_COLUMNS, room))


def _fixed_width(columns: int) -> int:
    """Return the width of the columns between the name and the strengths."""
    fixed = _CONTEXT_COLUMNS + _RATE_COLUMNS + 4 + _bar_width(columns)
    if columns >= _TYPE_FROM_COLUMNS:
        fixed += 16
    return fixed


def _strengths_width(columns: int) -> int:
    """Return the width of the column with the strengths of models; 0 if there is no room."""
    if columns < _STRENGTHS_FROM_COLUMNS:
        return 0
    return columns - _fixed_width(columns) - _USUAL_TITLE_COLUMNS - 2


def _bar_width(columns: int) -> int:
    if columns < _BAR_FROM_COLUMNS:
        return 0
    if columns < _WIDE_BAR_FROM_COLUMNS:
        return _BAR_COLUMNS
    return _WIDE_BAR_COLUMNS


def details(entry: ModelEntry, columns: int) -> list[Line]:
    """Return lines for which the columns have no room: first the outlook, last the path."""
    path_text, *other_texts = rows.details(entry)
    if entry.outlook is not None and entry.outlook.verdict != "no" and pace(entry.outlook):
        other_texts[-1] += f". It writes {pace(entry.outlook)}"
    lines = [line(row) for text in reversed(other_texts) for row in textwrap.wrap(text, columns)]
    return [*lines, *(line(muted(row)) for row in textwrap.wrap(path_text, columns))]


def labelled_details(entry: ModelEntry, columns: int) -> list[Line]:
    """Return the details as labels and values, for a panel with the height of the screen."""
    lines: list[Line] = []
    for label, text in rows.labelled_facts(entry, pace(entry.outlook)):
        name = f"{label:<{_LABEL_COLUMNS}}"
        for row in textwrap.wrap(text, max(1, columns - _LABEL_COLUMNS)):
            lines.append(line(muted(name), row))
            name = " " * _LABEL_COLUMNS
    return lines

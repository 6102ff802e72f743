"""Results of tuning on the screen: a curve of thread counts, a table of memory modes, reasons; each a panel."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.text.glyphs import BLOCKS, Glyphs
from app.tui.drawing.gauges import gauge
from app.tui.drawing.lines import EMPTY, Line, Role, Span, line, muted
from app.tui.drawing.panels import FRAME_COLUMNS, panel
from app.tui.widgets.figure_lines import FigureLines
from app.tuning import thread_bars
from app.tuning.thread_bars import TITLES, BarLine, curve_lines, option_lines
from app.tuning.thread_bars import Role as BarRole

if TYPE_CHECKING:
    from app.tuning.thread_bars import Comparison, Curve

_ROLES = {
    thread_bars.Role.HEADING: Role.MUTED,
    thread_bars.Role.KIND: Role.MUTED,
    thread_bars.Role.PLAIN: Role.PLAIN,
    thread_bars.Role.BEST: Role.GOOD,
    thread_bars.Role.EQUAL: Role.GOOD,
    thread_bars.Role.DROPPED: Role.MUTED,
}
_NAME_COLUMNS = 10
_PHASE_ROLES = {"decode": Role.WRITING, "prefill": Role.READING}


class ThreadCurve(FigureLines):
    """Shows one phase; nothing is drawn while it stays the same."""

    def __init__(self, phase: str, id: str | None = None) -> None:
        super().__init__(id=id)
        self._phase = phase
        self._given: tuple[Curve | None, int, str, Glyphs, int, int] | None = None

    def tell(
        self, curve: Curve | None, in_use: int, chooses: str, glyphs: Glyphs, most: int = 0, thickness: int = 1
    ) -> None:
        """Show a curve, or how things stand before anything was measured.

        Args:
            in_use: the count in use, marked.
            chooses: what keys choose for this phase; "" where they choose for the other one.
            most: counts up to this one have an empty row before they are measured; 0 for the one in use alone.
            thickness: rows of a bar; above one a blank row stands between two bars.
        """
        self._given = (curve, in_use, chooses, glyphs, most, thickness)
        width = self.size.width or 40
        if curve is None:
            counts = range(1, most + 1) if most else (in_use,)
            body = [_unmeasured(count, in_use, width - FRAME_COLUMNS, glyphs) for count in counts]
        else:
            drawn = curve_lines(curve, in_use, max(1, width - FRAME_COLUMNS), glyphs)
            body = [coloured(one, _PHASE_ROLES[self._phase], glyphs) for one in drawn]
        body = _thickened(body, thickness, glyphs)
        frame = _PHASE_ROLES[self._phase] if chooses else Role.FRAME
        name = TITLES[self._phase].capitalize()
        self.fill(panel(name, body, width, glyphs, foot=line(muted(chooses)) if chooses else EMPTY, frame=frame))

    def fill(self, lines: Sequence[Line]) -> None:
        """Show lines, as high as they are."""
        self.styles.height = len(lines)  # not measured by Textual, which may do it before the width has settled
        self.show(lines)

    def on_resize(self) -> None:
        """Draw the bars in the new width."""
        if self._given is not None:
            self.tell(*self._given)


def n_rows(curve: Curve | None, most: int, thickness: int = 1) -> int:
    """Return the rows that a curve takes without its frame, its bars of ``thickness`` rows each."""
    drawn = curve_lines(curve, None, 40, BLOCKS) if curve is not None else []
    n_headings = sum(one.role is BarRole.KIND for one in drawn)
    n_lines = len(drawn) or max(1, most)
    return n_lines + (n_lines - 1 + (thickness - 1) * (n_lines - n_headings) if thickness > 1 else 0)


def _thickened(body: list[Line], thickness: int, glyphs: Glyphs) -> list[Line]:
    if thickness <= 1:
        return body
    high: list[Line] = []
    for one in body:
        bar = _bar_alone(one, glyphs)
        is_heading = not any(span.text.strip() for span in bar) and len(one) == 1
        high += [*([EMPTY] * bool(high)), one, *([] if is_heading else [bar] * (thickness - 1))]
    return high


def _bar_alone(one: Line, glyphs: Glyphs) -> Line:
    signs = {glyphs.full, glyphs.spread}
    return tuple(span if len(span.text) > 1 and set(span.text) <= signs else Span(" " * len(span.text)) for span in one)


def _unmeasured(count: int, in_use: int, columns: int, glyphs: Glyphs) -> Line:
    if count == in_use:
        return (Span(f"{glyphs.here}{count:>3} ", Role.STRONG), Span("in use, "), muted("not measured"))
    return (Span(f" {count:>3} ", Role.STRONG), *gauge(0.0, max(1, columns - _NAME_COLUMNS), glyphs))


def coloured(one: BarLine, bar: Role, glyphs: Glyphs) -> Line:
    """Return a line of a table with its bar in the colour of the phase, fainter where it is not certain."""
    role = _ROLES[one.role]
    parts = re.split(f"([{re.escape(glyphs.full)}]{{2,}}|[{re.escape(glyphs.spread)}]{{2,}})", one.text)
    roles = {glyphs.full: role if role is Role.MUTED else bar, glyphs.spread: Role.MUTED}
    return tuple(Span(part, roles.get(part[0], role) if len(part) > 1 else role) for part in parts if part)


def option_panels(comparisons: tuple[tuple[Comparison, str], ...], glyphs: Glyphs, width: int) -> list[Line]:
    """Draw comparisons, each with the option in use, in ``width`` columns."""
    columns = max(20, width - FRAME_COLUMNS)
    found: list[Line] = []
    for comparison, in_use in comparisons:
        heading, *rows = option_lines(comparison, in_use, glyphs)
        rows = [wrapped for one in rows for wrapped in _wrapped(one, columns)]
        columns_of = heading.text[_NAME_COLUMNS:].strip()
        body = [line(muted(" " * _NAME_COLUMNS + columns_of))] if len(rows) > 1 else []
        body += [coloured(one, Role.PLAIN, glyphs) for one in rows]
        found += panel("Weights" if comparison.part == "weights" else "KV cache", body, width, glyphs)
    return found


def _wrapped(one: BarLine, columns: int) -> list[BarLine]:
    """Break a sentence; a row of figures is short enough anywhere but on the narrowest screens, which cut it."""
    if not one.text.startswith("   ") or len(one.text) <= columns:
        return [one]
    return [BarLine(text.strip(), one.role) for text in textwrap.wrap(one.text, columns)]

"""Tuning on the screen: a curve of thread counts, a table of memory modes, and steps next to the
machine's state."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.machine.tuning.thread_bars import TITLES, BarLine, CurveRole, curve_lines, option_lines
from app.text.glyphs import BLOCKS, Glyphs, choose_glyphs
from app.tui.drawing.lines import EMPTY, Line, Span, SpanRole, fitted, line, muted
from app.tui.drawing.panels import (
    FRAME_COLUMNS,
    FRAME_ROWS,
    aired,
    divided,
    gauge,
    panel,
    side_by_side,
)
from app.tui.speed.machine_lines import cores_panel, memory_panel
from app.tui.speed.watch import PerformanceView
from app.tui.widgets.figure_lines import FigureLines

if TYPE_CHECKING:
    from app.machine.tuning.thread_bars import Comparison, Curve, TuningReport

_ROLES = {
    CurveRole.PLAIN: SpanRole.PLAIN,
    CurveRole.BEST: SpanRole.GOOD,
    CurveRole.EQUAL: SpanRole.GOOD,
}
"""Those of the other lines are muted."""
_NAME_COLUMNS = 10
_PHASE_ROLES = {"decode": SpanRole.WRITING, "prefill": SpanRole.READING}
LEAST_ROWS = 9
"""Fewer rows hold no panel on the search and the machine that is worth looking at."""
_FINDING_COLUMNS = 8
_STEPS = (
    "number of threads that write",
    "number of threads that read the prompt",
    "each thread fixed to one core",
    "weights: file's map or huge pages",
    "how far ahead the kernels ask memory",
    "type of the KV cache, if you ask for it",
)


class ThreadCurve(FigureLines):
    """Shows one phase; nothing is drawn while it stays the same."""

    def __init__(self, phase: str, id: str | None = None) -> None:
        super().__init__(id=id)
        self._phase = phase

    def tell(
        self, curve: Curve | None, in_use: int, chooses: str, most: int, thickness: int
    ) -> None:
        """Show a curve, or how things are before anything was measured.

        Args:
            in_use: the count in use, marked.
            chooses: what keys choose for this phase; "" where they choose for the other one.
            most: counts up to this one have an empty row before they are measured; 0 for the one in
                use alone.
            thickness: rows of a bar; above one a blank row is between two bars.
        """
        glyphs = choose_glyphs()
        colour = _PHASE_ROLES[self._phase]
        name = TITLES[self._phase].capitalize()
        if chooses:
            frame = colour
        else:
            frame = SpanRole.FRAME
        if chooses:
            foot = line(muted(chooses))
        else:
            foot = EMPTY

        def draw(width: int) -> list[Line]:
            columns = max(1, width - FRAME_COLUMNS)
            if curve is None:
                counts = range(1, most + 1) if most else (in_use,)
                body = [_unmeasured(count, in_use, columns, glyphs) for count in counts]
            else:
                body = [
                    coloured(one, colour, glyphs)
                    for one in curve_lines(curve, in_use, columns, glyphs)
                ]
            return panel(
                name, _thickened(body, thickness, glyphs), width, glyphs, foot=foot, frame=frame
            )

        self.follow(draw)


def n_rows(curve: Curve | None, most: int, thickness: int) -> int:
    """Return the rows that a curve takes without its frame once all of it is measured."""
    if curve is not None:
        drawn = curve_lines(curve, None, 40, BLOCKS)
    else:
        drawn = []
    n_headings = sum(one.role is CurveRole.KIND for one in drawn)
    n_lines = len(drawn) or max(1, most)
    return n_lines + (
        n_lines - 1 + (thickness - 1) * (n_lines - n_headings) if thickness > 1 else 0
    )


def _thickened(body: list[Line], thickness: int, glyphs: Glyphs) -> list[Line]:
    if thickness <= 1:
        return body
    high: list[Line] = []
    signs = {glyphs.full, glyphs.spread}
    for one in body:
        is_bar = [len(span.text) > 1 and set(span.text) <= signs for span in one]
        bar = tuple(
            span if part else Span(" " * len(span.text))
            for span, part in zip(one, is_bar, strict=True)
        )
        is_heading = not any(span.text.strip() for span in bar) and len(one) == 1
        high += [*([EMPTY] * bool(high)), one, *([] if is_heading else [bar] * (thickness - 1))]
    return high


def _unmeasured(count: int, in_use: int, columns: int, glyphs: Glyphs) -> Line:
    if count == in_use:
        return (
            Span(f"{glyphs.here}{count:>3} ", SpanRole.STRONG),
            Span("in use, "),
            muted("not measured"),
        )
    return (
        Span(f" {count:>3} ", SpanRole.STRONG),
        *gauge(0.0, max(1, columns - _NAME_COLUMNS), glyphs),
    )


def coloured(one: BarLine, bar: SpanRole, glyphs: Glyphs) -> Line:
    """Return a line of a table with its bar in the colour of the phase, fainter where it is not
    certain."""
    role = _ROLES.get(one.role, SpanRole.MUTED)
    parts = re.split(
        f"([{re.escape(glyphs.full)}]{{2,}}|[{re.escape(glyphs.spread)}]{{2,}})", one.text
    )
    roles = {glyphs.full: role if role is SpanRole.MUTED else bar, glyphs.spread: SpanRole.MUTED}
    return tuple(
        Span(part, roles.get(part[0], role) if len(part) > 1 else role) for part in parts if part
    )


def option_panels(
    comparisons: Sequence[tuple[Comparison, str]], glyphs: Glyphs, width: int
) -> list[Line]:
    """Draw comparisons, each with the option in use, in ``width`` columns."""
    columns = max(20, width - FRAME_COLUMNS)
    found: list[Line] = []
    for comparison, in_use in comparisons:
        heading, *rows = option_lines(comparison, in_use, glyphs)
        rows = [wrapped for one in rows for wrapped in _wrapped(one, columns)]
        columns_of = heading.text[_NAME_COLUMNS:].strip()
        if len(rows) > 1:
            body = [line(muted(" " * _NAME_COLUMNS + columns_of))]
        else:
            body = []
        body += [coloured(one, SpanRole.PLAIN, glyphs) for one in rows]
        found += panel(
            "Weights" if comparison.part == "weights" else "KV cache", body, width, glyphs
        )
    return found


def _wrapped(one: BarLine, columns: int) -> list[BarLine]:
    """Break a sentence; a row of figures is short enough anywhere but on the narrowest screens,
    which cut it."""
    if not one.text.startswith("   ") or len(one.text) <= columns:
        return [one]
    return [BarLine(text.strip(), one.role) for text in textwrap.wrap(one.text, columns)]


def room_lines(
    view: PerformanceView, report: TuningReport | None, width: int, height: int, glyphs: Glyphs
) -> list[Line]:
    """Fill ``height`` rows with the steps of the search, and with what the machine does
    meanwhile."""
    steps = step_lines(report, glyphs)
    widths = divided(width, 2)
    below = min(len(memory_panel(view, glyphs, widths[1], 0)), height - len(steps) - FRAME_ROWS)
    if below > FRAME_ROWS:
        memory = memory_panel(view, glyphs, widths[0], below)
    else:
        memory = []
    rows = height - len(memory)
    body = [fitted(one, widths[0] - FRAME_COLUMNS) for one in aired(steps, rows)]
    searched = panel("What measuring finds out", body, widths[0], glyphs, rows)
    return side_by_side(
        [[*searched, *memory], cores_panel(view, glyphs, widths[1], height)], widths
    )


def step_lines(report: TuningReport | None, glyphs: Glyphs) -> list[Line]:
    """Return a line for each thing that is measured: whether it is known, what was found, what it
    is."""
    return [
        line(
            Span(f"{glyphs.good if found else '-':<3}", SpanRole.GOOD if found else SpanRole.MUTED),
            Span(
                f"{found or 'not yet':<{_FINDING_COLUMNS}} ",
                SpanRole.STRONG if found else SpanRole.MUTED,
            ),
            muted(what),
        )
        for what, found in zip(
            _STEPS, _found(report) if report is not None else [""] * len(_STEPS), strict=True
        )
    ]


def _found(report: TuningReport) -> list[str]:
    """Return what each of the steps has found; "" for nothing yet."""
    threads = [report.curve(phase) for phase in ("decode", "prefill")]
    options = [report.comparison(part) for part in ("weights", "kv")]
    writing, reading = (
        str(one.best) if one is not None and one.best is not None else "" for one in threads
    )
    weights, kv_type = (one.best if one is not None and one.is_measured else "" for one in options)
    pinned = {True: "faster", False: "no gain", None: ""}[report.pinned]
    if any("GB/s" in reason for reason in report.reasons):
        asked_ahead = "see Why"
    else:
        asked_ahead = ""
    return [writing, reading, pinned, weights, asked_ahead, kv_type]

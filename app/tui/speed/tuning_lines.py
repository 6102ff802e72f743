"""What a search for the best threads does, step by step with its findings, beside the cores and memory it works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.text.glyphs import Glyphs
from app.tui.drawing.lines import EMPTY, Line, Role, Span, fitted, line, muted
from app.tui.drawing.panels import FRAME_COLUMNS, FRAME_ROWS, beside, divided, panel
from app.tui.speed import machine_lines

if TYPE_CHECKING:
    from app.tui.speed.watch import PerformanceView
    from app.tuning.thread_bars import Curve, TuningReport

LEAST_ROWS = 9
"""Fewer rows hold no panel worth looking at."""
_FINDING_COLUMNS = 8


def room_lines(
    view: PerformanceView, report: TuningReport | None, width: int, height: int, glyphs: Glyphs
) -> list[Line]:
    """Fill ``height`` rows with the steps of the search, and with what the machine does meanwhile."""
    steps = step_lines(report, glyphs)

    def searched(width: int, rows: int) -> list[Line]:
        apart = len(steps) > 1 and rows - FRAME_ROWS >= 2 * len(steps) - 1
        body = [each for one in steps for each in ((one, EMPTY) if apart else (one,))]
        body = [fitted(one, width - FRAME_COLUMNS) for one in body]
        return panel("What measuring finds out", body, width, glyphs, rows)

    def memory(width: int, rows: int) -> list[Line]:
        body = machine_lines.memory_lines(view, width - FRAME_COLUMNS, glyphs)
        return panel("Memory", body, width, glyphs, rows, machine_lines.memory_note(view))

    def cores(width: int, rows: int) -> list[Line]:
        body = machine_lines.cores_lines(view, width - FRAME_COLUMNS, rows - FRAME_ROWS, glyphs)
        return panel("Cores", body, width, glyphs, rows, machine_lines.cores_note(view, glyphs))

    widths = divided(width, 2)
    below = min(len(memory(widths[1], 0)), height - len(steps) - FRAME_ROWS)
    if below <= FRAME_ROWS:
        return beside([searched(widths[0], height), cores(widths[1], height)], widths)
    left = [*searched(widths[0], height - below), *memory(widths[0], below)]
    return beside([left, cores(widths[1], height)], widths)


def step_lines(report: TuningReport | None, glyphs: Glyphs) -> list[Line]:
    """Return a line for each thing that is measured: whether it is known, what was found, what it is."""
    writing, reading = (report.curve(phase) if report is not None else None for phase in ("decode", "prefill"))
    steps = (
        (_best(writing), "number of threads that write"),
        (_best(reading), "number of threads that read the prompt"),
        (_pinned(report), "each thread fixed to one core"),
        (_option(report, "weights"), "weights: file's map or huge pages"),
        (_asked_ahead(report), "how far ahead the kernels ask memory"),
        (_option(report, "kv"), "type of the KV cache, if you ask for it"),
    )
    return [
        line(
            Span(f"{glyphs.good if found else '-':<3}", Role.GOOD if found else Role.MUTED),
            Span(f"{found or 'not yet':<{_FINDING_COLUMNS}} ", Role.STRONG if found else Role.MUTED),
            muted(what),
        )
        for found, what in steps
    ]


def _best(curve: Curve | None) -> str:
    return str(curve.best) if curve is not None and curve.best is not None else ""


def _pinned(report: TuningReport | None) -> str:
    if report is None or report.pinned is None:
        return ""
    return "faster" if report.pinned else "no gain"


def _option(report: TuningReport | None, part: str) -> str:
    comparison = report.comparison(part) if report is not None else None
    return comparison.best if comparison is not None and comparison.is_measured else ""


def _asked_ahead(report: TuningReport | None) -> str:
    is_known = report is not None and any("GB/s" in reason for reason in report.reasons)
    return "see Why" if is_known else ""

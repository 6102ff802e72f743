"""State of the machine: memory by its use, context, cores, clock, threads, the screen itself."""

from __future__ import annotations

from collections.abc import Sequence

from app.machine.sensors.page_faults import LEAST_DISK_BYTES_PER_S
from app.machine.sensors.records import ModelFacts
from app.machine.sensors.sample import MachineSample
from app.text import figures
from app.text.glyphs import Glyphs
from app.tui.drawing import lines
from app.tui.drawing.graph import history_lines
from app.tui.drawing.lines import (
    EMPTY,
    Line,
    Span,
    SpanRole,
    caution,
    line,
    muted,
    spread_lines,
    strong,
)
from app.tui.drawing.panels import (
    FRAME_COLUMNS,
    FRAME_ROWS,
    aired,
    gauge,
    panel,
    part_glyph,
    stacked,
)
from app.tui.speed.watch import MOST_SHARE, PerformanceView
from app.tui.widgets.status_line import context_parts

_MOST_CORE_GAUGES = 8
_LEAST_HISTORY_ROWS = 3
_LEAST_GAUGE_COLUMNS = 17
_LOOKING = "looking at the machine"


def memory_lines(view: PerformanceView, width: int, glyphs: Glyphs) -> list[Line]:
    """Return one bar of all memory that matters here, what its parts are, and whether any comes
    from disk."""
    sample = view.sample
    facts = view.figures.facts
    if sample is None:
        return [line(muted(_LOOKING))]
    parts = _memory_parts(sample, facts)
    drawn = stacked([(float(n_bytes or 0), role) for _, n_bytes, role, _ in parts], width, glyphs)
    legend = memory_cells(sample, facts, glyphs)
    context = context_line(view, width, glyphs)
    shown = [drawn, *_in_columns(legend, width), *([context] if context else [])]
    return [*shown, *spread_lines(_from_disk(sample), width)]


def memory_cells(sample: MachineSample, facts: ModelFacts | None, glyphs: Glyphs) -> list[Line]:
    """Return what fills the memory: the sign of each part in the bar, its name and its size."""
    cells = []
    for number, (name, n_bytes, role, of) in enumerate(_memory_parts(sample, facts)):
        if facts is not None or name not in ("model", "KV"):
            if n_bytes is not None:
                size = figures.size(n_bytes)
            else:
                size = "-"
            cells.append(
                line(
                    Span(part_glyph(number, glyphs), role),
                    muted(f" {name} "),
                    strong(size),
                    muted(of),
                )
            )
    return cells


def _in_columns(cells: list[Line], width: int) -> list[Line]:
    """Put the texts of a legend into one line, or below each other in columns."""
    if len(one := spread_lines(cells, width)) == 1:
        return one
    n = max(1, min(4, width // (max(map(lines.width_of, cells), default=0) + 2)))
    rows = (cells[at : at + n] for at in range(0, len(cells), n))
    return [tuple(span for cell in row for span in lines.fitted(cell, width // n)) for row in rows]


def _memory_parts(
    sample: MachineSample, facts: ModelFacts | None
) -> list[tuple[str, int | None, SpanRole, str]]:
    if facts is not None:
        resident = sample.weights_resident_bytes
    else:
        resident = None
    of = ""
    if facts is not None and (resident is None or resident < 0.99 * facts.weights_bytes):
        of = f" of {figures.size(facts.weights_bytes)}"
    return [
        ("model", resident, SpanRole.WRITING, of),
        ("KV", facts.kv_bytes if facts is not None else None, SpanRole.READING, ""),
        ("program", sample.own_bytes, SpanRole.ACCENT, ""),
        ("free", sample.available_bytes, SpanRole.UNFILLED, ""),
    ]


def _from_disk(sample: MachineSample) -> list[Line]:
    found = []
    if sample.disk_bytes_per_s is not None:
        # The disk light: parts of the model come from disk, so another program has pushed them out.
        rate = f"from disk {figures.size(sample.disk_bytes_per_s)}/s"
        is_lit = sample.disk_bytes_per_s >= LEAST_DISK_BYTES_PER_S
        found.append(line(caution(f"{rate} reading!") if is_lit else muted(rate)))
    if sample.swap_used_bytes is not None:
        found.append(line(muted(f"swap {figures.size(sample.swap_used_bytes)}")))
    return found


def context_line(view: PerformanceView, width: int, glyphs: Glyphs) -> Line:
    """Return how full the context is: system prompt, old turns, the newest one, free."""
    parts = context_parts(view.status)
    if not parts.total:
        return EMPTY
    used = f" {figures.count(parts.total - parts.free)} of {figures.count(parts.total)}"
    cells = max(3, width - len("context ") - len(used))
    roles = (SpanRole.ACCENT, SpanRole.READING, SpanRole.WRITING, SpanRole.UNFILLED)
    drawn = stacked(list(zip(map(float, parts), roles, strict=True)), cells, glyphs)
    return (muted("context "), *drawn, caution(used) if parts.is_nearly_full else strong(used))


def core_lines(loads: Sequence[float], width: int, glyphs: Glyphs) -> list[Line]:
    """Return a gauge for each core, two in a line where there is room, or one sign for each where
    there are many."""
    if not loads:
        return [line(muted("cores -"))]
    if len(loads) <= _MOST_CORE_GAUGES:
        if width >= 2 * _LEAST_GAUGE_COLUMNS and len(loads) > 2:
            per_line = 2
        else:
            per_line = 1
        each = width // per_line - (per_line - 1)
        texts = [lines.percent(load, 4) for load in loads]
        cells = [
            (muted(f"{number} "), *gauge(load, max(2, each - len(text) - 2), glyphs), Span(text))
            for number, (load, text) in enumerate(zip(loads, texts, strict=True))
        ]
        return spread_lines(cells, width)
    marks = "".join(lines.level(load, glyphs) for load in loads)
    rows = [marks[start : start + width] for start in range(0, len(marks), max(1, width))]
    return [line(Span(row, SpanRole.ACCENT)) for row in rows]


def clock_text(sample: MachineSample, between: str) -> str:
    """Write clock and temperature."""
    parts = []
    if sample.clock_ghz is not None:
        if sample.most_clock_ghz:
            most = f" of {sample.most_clock_ghz:.1f}"
        else:
            most = ""
        parts.append(f"{sample.clock_ghz:.1f}{most} GHz")
    if sample.temperature_c is not None:
        parts.append(f"{sample.temperature_c:.0f} °C")
    return between.join(parts)


def cores_lines(view: PerformanceView, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """Return the cores, and below them what computes and what slows them; their load so far where
    rows are left."""
    sample = view.sample
    if sample is None:
        return [line(muted(_LOOKING))]
    shown = core_lines(sample.core_loads, width, glyphs)
    around = spread_lines(_around(view, sample), width, glyphs.between)
    left = rows - len(shown) - len(around) - 2
    if left >= _LEAST_HISTORY_ROWS and view.loads:
        history = history_lines(view.loads, width, left, len(sample.core_loads), glyphs)
        return [*shown, EMPTY, *history, EMPTY, *around]
    return [*shown, *around]


def _around(view: PerformanceView, sample: MachineSample) -> list[Line]:
    found = []
    if sample.throttled:
        found.append(line(caution("throttled by heat!")))
    if sample.governor is not None:
        slow = sample.governor.holds_clock_down
        found.append(
            line(caution(f"{sample.governor.name} !") if slow else muted(sample.governor.name))
        )
    if sample.battery is not None:
        supply = {True: "on mains", False: "on battery", None: "battery"}[sample.battery.on_mains]
        found.append(line(muted(f"{supply} {sample.battery.percent:.0f} %")))
    if sample.threads_working is not None:
        found.append(line(muted(f"{figures.counted(sample.threads_working, 'thread')} computing")))
    if sample.others_cores is not None:
        found.append(line(muted(f"other programs {sample.others_cores:.1f} cores")))
    return [*found, screen_line(view)]


def screen_line(view: PerformanceView) -> Line:
    """Return what drawing costs, and that it is slowed down."""
    if view.interface_cost is not None:
        cost = f"{100 * view.interface_cost:.0f}"
    else:
        cost = "-"
    if view.slowed_by <= 1:
        return line(muted(f"screen {cost} % of a core"))
    slowed = f"screen {cost} %, slowed {view.slowed_by}x"
    # A weak machine is slowed before drawing was measured to cost too much.
    return line(caution(slowed) if (view.interface_cost or 0.0) > MOST_SHARE else muted(slowed))


def memory_note(view: PerformanceView) -> Line:
    """Return what a token of context takes, for the panel's edge."""
    facts = view.figures.facts
    if facts is None:
        return EMPTY
    # The unit in full: "112KB", "640B".
    return line(muted(f"{figures.size(facts.kv_bytes_per_position).removesuffix('B')}B a token"))


def memory_panel(view: PerformanceView, glyphs: Glyphs, width: int, rows: int) -> list[Line]:
    """Draw the memory in ``rows`` rows, 0 for as many as it needs."""
    body = memory_lines(view, width - FRAME_COLUMNS, glyphs)
    return panel("Memory", aired(body, rows), width, glyphs, rows, memory_note(view))


def cores_panel(view: PerformanceView, glyphs: Glyphs, width: int, rows: int) -> list[Line]:
    """Draw the cores, with clock and temperature in the panel's edge."""
    body = cores_lines(view, width - FRAME_COLUMNS, max(0, rows - FRAME_ROWS), glyphs)
    if view.sample is not None:
        text = clock_text(view.sample, glyphs.between)
    else:
        text = ""
    return panel("Cores", body, width, glyphs, rows, line(muted(text)))

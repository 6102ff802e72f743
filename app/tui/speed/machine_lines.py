"""Lines on the state of the machine: memory, context, cores, clock, threads, cost of drawing."""

from __future__ import annotations

from collections.abc import Sequence

from app.machine.sensors.page_faults import LEAST_DISK_BYTES_PER_S
from app.machine.sensors.records import ModelFacts
from app.machine.sensors.sample import MachineSample
from app.machine.sensors.tuning_conditions import QUIET_CORES
from app.text import figures
from app.text.glyphs import Glyphs
from app.tui.drawing import lines
from app.tui.drawing.lines import (
    EMPTY,
    Line,
    Span,
    SpanRole,
    caution,
    joined,
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
from app.tui.speed.core_lanes import (
    curve_rows,
    curves_of,
    lane_rows,
    ranges,
    seconds_of,
    summary_line,
)
from app.tui.speed.energy_lines import energy_notes
from app.tui.speed.watch import MAX_SHARE, PerformanceView
from app.tui.widgets.status_line import context_parts

_MOST_CORE_GAUGES = 8
_LEAST_LANE_ROWS = 8
_LEAST_GAUGE_COLUMNS = 17
_READING = "reading the machine"


def memory_lines(view: PerformanceView, width: int, glyphs: Glyphs) -> list[Line]:
    """Return a bar of the memory by use, its legend, the context, and reading from disk."""
    sample = view.sample
    facts = view.figures.facts
    if sample is None:
        return [line(muted(_READING))]
    areas = _memory_areas(sample, facts)
    drawn = stacked([(float(n_bytes or 0), role) for _, n_bytes, role, _ in areas], width, glyphs)
    legend = memory_cells(sample, facts, glyphs)
    memory = [drawn, *_in_columns(legend, width)]
    if context := context_line(view, width, glyphs):
        memory.append(context)
    return [*memory, *spread_lines(_from_disk(sample), width)]


def memory_cells(sample: MachineSample, facts: ModelFacts | None, glyphs: Glyphs) -> list[Line]:
    """Return the legend of the memory's bar: sign, name and size of each area."""
    cells = []
    for number, (name, n_bytes, role, total) in enumerate(_memory_areas(sample, facts)):
        if facts is not None or name not in ("model", "KV"):
            size = "-"
            if n_bytes is not None:
                size = figures.size(n_bytes)
            cells.append(
                line(
                    Span(part_glyph(number, glyphs), role),
                    muted(f" {name} "),
                    strong(size),
                    muted(total),
                )
            )
    return cells


def _in_columns(cells: list[Line], width: int) -> list[Line]:
    """Put the cells of a legend into one line, or into columns if they need several lines."""
    if len(row := spread_lines(cells, width)) == 1:
        return row
    n_columns = max(1, min(4, width // (max(map(lines.width_of, cells), default=0) + 2)))
    rows = (cells[start : start + n_columns] for start in range(0, len(cells), n_columns))
    return [
        tuple(span for cell in row for span in lines.fitted(cell, width // n_columns))
        for row in rows
    ]


def _memory_areas(
    sample: MachineSample, facts: ModelFacts | None
) -> list[tuple[str, int | None, SpanRole, str]]:
    resident = None
    kv_bytes = None
    total = ""
    if facts is not None:
        resident = sample.weights_resident_bytes
        kv_bytes = facts.kv_bytes
        if resident is None or resident < 0.99 * facts.weights_bytes:
            total = f" of {figures.size(facts.weights_bytes)}"
    return [
        ("model", resident, SpanRole.WRITING, total),
        ("KV", kv_bytes, SpanRole.READING, ""),
        ("program", sample.own_bytes, SpanRole.ACCENT, ""),
        ("free", sample.available_bytes, SpanRole.UNFILLED, ""),
    ]


def _from_disk(sample: MachineSample) -> list[Line]:
    notes = []
    if sample.disk_bytes_per_s is not None:
        # Reading from disk means that another program has pushed parts of the model out of memory.
        rate = f"disk {figures.byte_size(sample.disk_bytes_per_s)}/s"
        if sample.disk_bytes_per_s >= LEAST_DISK_BYTES_PER_S:
            notes.append(line(caution(f"{rate}!")))
        else:
            notes.append(line(muted(rate)))
    if sample.swap_used_bytes is not None:
        notes.append(line(muted(f"swap {figures.size(sample.swap_used_bytes)}")))
    return notes


def context_line(view: PerformanceView, width: int, glyphs: Glyphs) -> Line:
    """Return a bar of the context: system prompt, old turns, the newest turn, free."""
    context = context_parts(view.status)
    if not context.total:
        return EMPTY
    used = f" {figures.count(context.total - context.free)} of {figures.count(context.total)}"
    cells = context.cells(max(3, width - len("context ") - len(used)))
    roles = (SpanRole.ACCENT, SpanRole.READING, SpanRole.WRITING, SpanRole.UNFILLED)
    drawn = joined(
        Span(part_glyph(index, glyphs) * n_cells, role)
        for index, (n_cells, role) in enumerate(zip(cells, roles, strict=True))
    )
    if context.is_nearly_full:
        return (muted("context "), *drawn, caution(used))
    return (muted("context "), *drawn, strong(used))


def core_lines(
    loads: Sequence[float], width: int, glyphs: Glyphs, numbers: Sequence[int] = ()
) -> list[Line]:
    """Return a gauge per core, two in a line if there is room; a character each for many cores.

    Args:
        numbers: the system's numbers of the cores; empty to count them.
    """
    if not loads:
        return [line(muted("cores -"))]
    if len(loads) <= _MOST_CORE_GAUGES:
        per_line = 1
        if width >= 2 * _LEAST_GAUGE_COLUMNS and len(loads) > 2:
            per_line = 2
        gauge_columns = width // per_line - (per_line - 1)
        texts = [lines.percent(load, 4) for load in loads]
        cells = [
            (
                muted(f"{number} "),
                *gauge(load, max(2, gauge_columns - len(text) - 2), glyphs),
                Span(text),
            )
            for number, load, text in zip(numbers or range(len(loads)), loads, texts, strict=True)
        ]
        return spread_lines(cells, width)
    marks = "".join(lines.level(load, glyphs) for load in loads)
    rows = [marks[start : start + width] for start in range(0, len(marks), max(1, width))]
    return [line(Span(row, SpanRole.ACCENT)) for row in rows]


def clock_text(sample: MachineSample, between: str) -> str:
    """Return clock and temperature, as far as they are known."""
    words = []
    if sample.clock_ghz is not None:
        maximum = ""
        if sample.most_clock_ghz:
            maximum = f" of {sample.most_clock_ghz:.1f}"
        words.append(f"{sample.clock_ghz:.1f}{maximum} GHz")
    if sample.temperature_c is not None:
        words.append(f"{sample.temperature_c:.0f} °C")
    return between.join(words)


def cores_lines(
    view: PerformanceView, width: int, rows: int, glyphs: Glyphs, has_spare_rows: bool = True
) -> list[Line]:
    """Return the cores, and notes on what uses or slows them.

    From ``_LEAST_LANE_ROWS`` rows on, each core has a lane, and there are curves of clock and
    temperature, which fill the rows that are left if ``has_spare_rows``.
    """
    sample = view.sample
    if sample is None:
        return [line(muted(_READING))]
    notes = spread_lines(_notes(view, sample, width, glyphs), width, glyphs.between)
    if rows < _LEAST_LANE_ROWS:
        return [*_summary(view, sample, width, glyphs), *notes]
    seconds = seconds_of(view.samples)
    curves = curves_of(seconds)
    lanes = lane_rows(view, seconds, width, rows - len(notes) - len(curves), glyphs)
    if not lanes:
        return [*_summary(view, sample, width, glyphs), *notes]
    n_curve_rows = len(curves)
    if has_spare_rows:
        n_curve_rows = rows - len(lanes) - len(notes)
    return [*lanes, *curve_rows(curves, seconds, width, n_curve_rows, glyphs), *notes]


def _summary(
    view: PerformanceView, sample: MachineSample, width: int, glyphs: Glyphs
) -> list[Line]:
    """Return gauges for few cores, and a character for each of many."""
    numbers: Sequence[int] = range(len(sample.core_loads))
    if len(numbers) > _MOST_CORE_GAUGES and (summary := summary_line(view, width, glyphs)):
        return [summary]
    if view.core_map is not None and len(view.core_map.cpus) == len(numbers):
        numbers = sorted(cpu.number for cpu in view.core_map.cpus)
    return core_lines(sample.core_loads, width, glyphs, numbers)


def _notes(view: PerformanceView, sample: MachineSample, width: int, glyphs: Glyphs) -> list[Line]:
    notes = []
    n_throttled = sum(earlier.throttled or 0 for earlier in view.samples) or sample.throttled
    if n_throttled:
        notes.append(line(caution(f"! throttled by heat, {figures.counted(n_throttled, 'time')}")))
    elif sample.clock_limit is not None:
        notes.append(line(caution(f"! clock held down: {sample.clock_limit.value}")))
    if sample.governor is not None:
        if sample.governor.holds_clock_down:
            notes.append(line(caution(f"{sample.governor.name} !")))
        else:
            notes.append(line(muted(sample.governor.name)))
    notes += energy_notes(view, sample)
    if sample.threads_working:
        busy = f"{figures.counted(sample.threads_working, 'thread')} busy"
        if view.idle_work:
            busy = f"{busy}: {view.idle_work}"
        notes.append(line(muted(busy)))
    elif sample.threads_working is not None:
        notes.append(line(muted("idle")))
    if sample.engine_cpus:
        notes.append(line(muted(f"{glyphs.here} engine on {ranges(sample.engine_cpus)}")))
    notes += _limits(view, sample)
    if (sample.others_cores or 0.0) > QUIET_CORES:
        notes.append(line(muted(f"other programs use {sample.others_cores:.1f} cores")))
    return [*notes, screen_line(view, width)]


def _limits(view: PerformanceView, sample: MachineSample) -> list[Line]:
    """Return limits on the use of the cores: a set of allowed CPUs, a quota, CPUs that are off."""
    notes = []
    if sample.quota is not None:
        notes.append(line(caution(f"quota of {sample.quota.cores:.1f} cores")))
    core_map = view.core_map
    if core_map is None:
        return notes
    allowed = [cpu.number for cpu in core_map.cpus if cpu.is_allowed]
    if len(allowed) < len(core_map.cpus):
        notes.append(line(caution(f"may use CPU {ranges(allowed)} only")))
    if core_map.n_offline:
        notes.append(line(muted(f"{figures.counted(core_map.n_offline, 'CPU')} off")))
    return notes


def screen_line(view: PerformanceView, width: int) -> Line:
    """Return the cost of drawing, and whether the screen redraws less often."""
    cost = "-"
    if view.interface_cost is not None:
        cost = f"{100 * view.interface_cost:.0f}"
    if view.slowed_by <= 1:
        return line(muted(f"screen {cost} % of a core"))
    text = f"screen {cost} % (redraws less often)"
    if len(text) > width:
        text = f"screen {cost} % (redraws less)"
    # Weak machines start slowed down, before drawing has been measured.
    if (view.interface_cost or 0.0) > MAX_SHARE:
        return line(caution(text))
    return line(muted(text))


def memory_note(view: PerformanceView) -> Line:
    """Return the KV cache's memory for a token, for the panel's border."""
    facts = view.figures.facts
    if facts is None:
        return EMPTY
    return line(muted(f"KV {figures.byte_size(facts.kv_bytes_per_position)} per token"))


def memory_panel(view: PerformanceView, glyphs: Glyphs, width: int, rows: int) -> list[Line]:
    """Draw the memory in ``rows`` rows, or in as many as it needs if ``rows`` is 0."""
    body = memory_lines(view, width - FRAME_COLUMNS, glyphs)
    return panel("Memory", aired(body, rows), width, glyphs, rows, memory_note(view))


def cores_panel(
    view: PerformanceView, glyphs: Glyphs, width: int, rows: int, n_usual_rows: int = 0
) -> list[Line]:
    """Draw the cores, with clock and temperature in the panel's border.

    Args:
        n_usual_rows: limit on the rows if ``rows`` is 0.
    """
    n_body_rows = max(0, (rows or n_usual_rows) - FRAME_ROWS)
    body = cores_lines(view, width - FRAME_COLUMNS, n_body_rows, glyphs, has_spare_rows=rows > 0)
    clock = ""
    if view.sample is not None:
        clock = clock_text(view.sample, glyphs.between)
    return panel("Cores", body, width, glyphs, rows, line(muted(clock)))

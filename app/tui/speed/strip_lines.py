"""Text of the strip beside the chat, line by line."""

from __future__ import annotations

from collections.abc import Sequence

from app.chat.status import Activity
from app.machine.records import MORE_THAN_MEMORY, ModelFacts
from app.machine.sample import MachineSample
from app.text import figures
from app.text.glyphs import Glyphs
from app.tui.speed import lines
from app.tui.speed.lines import EMPTY, Line, Role, Span, line, muted, warning
from app.tui.speed.watch import PerformanceView

_MOST_CORE_LINES = 4


def speed_lines(view: PerformanceView) -> list[Line]:
    """Return the line above the graph."""
    status = view.status
    if status.activity is Activity.READING:
        return [line(f"{lines.rate(status.rate_tps)}", muted(f" tok/s  {_read_share(view)} read"))]
    tps = view.speed.last_1_s
    return [line(lines.rate(tps), muted(" tok/s "), f"{lines.milliseconds(tps)}", muted(" ms/tok"))]


def _read_share(view: PerformanceView) -> str:
    total = view.status.total
    return lines.percent(view.status.done / total) if total else lines.percent(0)


def below_graph(view: PerformanceView, glyphs: Glyphs) -> list[Line]:
    """Return everything below the graph."""
    found = [*_ceiling_lines(view, glyphs), EMPTY]
    sample = view.sample
    if sample is not None:
        found += [*core_lines(sample.core_loads, glyphs), *_clock_line(sample, glyphs), EMPTY]
        found += _memory_lines(sample, view.figures.facts)
        if sample.threads is not None:
            working = sample.threads_working if sample.threads_working is not None else "-"
            found.append(line(muted("threads "), f"{working}", muted(" of "), f"{sample.threads}", muted(" busy")))
    return [*found, interface_line(view)]


def flat_lines(view: PerformanceView, width: int, glyphs: Glyphs) -> list[Line]:
    """Return the figures in three lines, for a terminal that is too narrow for a column."""
    speed, sample = view.speed, view.sample
    first = [f"{lines.rate(speed.last_1_s)} tok/s", f"10 s {lines.rate(speed.last_10_s)}"]
    first.append(f"{lines.milliseconds(speed.last_1_s)} ms/tok")
    if view.ceiling is not None:
        first.append(f"ceiling {ceiling_share(view)}")
    second = [interface_text(view)]
    third = []
    if sample is not None:
        cores = "".join(level(load, glyphs) for load in sample.core_loads[:16])
        second = [f"cores {cores}" if cores else "", *_clock_parts(sample), *second]
        third = [f"program {lines.size(sample.own_bytes)}", f"free {lines.size(sample.available_bytes)}"]
        facts = view.figures.facts
        if facts is not None:
            third.insert(0, f"model {resident(sample, facts)}")
        if sample.faults_per_s is not None:
            third.append(f"disk {sample.faults_per_s:3.0f}/s")
    rows = [glyphs.between.join(filter(None, parts))[:width] for parts in (first, second, third)]
    return [line(row) for row in rows]


def _ceiling_lines(view: PerformanceView, glyphs: Glyphs) -> list[Line]:
    ceiling = view.ceiling
    if ceiling is None:
        return [line(muted("ceiling not measured")), EMPTY]
    share = ceiling.share(shown_tps(view))
    bar = Span(lines.bar(share, 9, glyphs), Role.BAR)
    below = f"of {figures.rate(ceiling.tps)} tok/s ({ceiling.read_gbps:.1f} GB/s)"
    return [line(muted("ceiling "), f"{ceiling_share(view):>6} ", bar), line(muted(below))]


def shown_tps(view: PerformanceView) -> float:
    """Return the speed that is compared with the ceiling: of the last ten seconds."""
    return view.speed.last_10_s


def ceiling_share(view: PerformanceView) -> str:
    """Write the share of the ceiling."""
    assert view.ceiling is not None
    share = view.ceiling.share(shown_tps(view))
    return ">100 %" if share > MORE_THAN_MEMORY else lines.percent(share)


def core_lines(loads: Sequence[float], glyphs: Glyphs) -> list[Line]:
    """Return a bar for each core, or one character for each where there are many."""
    if not loads:
        return [line(muted("cores -"))]
    if len(loads) <= _MOST_CORE_LINES:
        return [
            line(muted(f"core {number} "), Span(lines.bar(load, 11, glyphs), Role.BAR), f" {lines.percent(load)}")
            for number, load in enumerate(loads)
        ]
    marks = "".join(level(load, glyphs) for load in loads)
    rows = [marks[start : start + 18] for start in range(0, min(len(marks), 90), 18)]
    return [line(muted("cores " if row is rows[0] else "      "), Span(row, Role.BAR)) for row in rows]


def level(load: float, glyphs: Glyphs) -> str:
    """Return one character for a load: an idle core is a low mark, never a blank."""
    return glyphs.levels[max(1, round(load * (len(glyphs.levels) - 1)))]


def _clock_line(sample: MachineSample, glyphs: Glyphs) -> list[Line]:
    parts = _clock_parts(sample)
    if sample.throttled:
        parts.append("throttled!")
    return [line(glyphs.between.join(parts))] if parts else []


def _clock_parts(sample: MachineSample) -> list[str]:
    parts = []
    if sample.clock_ghz is not None:
        most = f" of {sample.most_clock_ghz:.1f}" if sample.most_clock_ghz else ""
        parts.append(f"{sample.clock_ghz:.1f}{most} GHz")
    if sample.temperature_c is not None:
        parts.append(f"{sample.temperature_c:.0f} °C")
    return parts


def resident(sample: MachineSample, facts: ModelFacts) -> str:
    """Write how much of the weights is in memory, of how much."""
    return f"{lines.size(sample.weights_resident_bytes)}/{figures.size(facts.weights_bytes)}"


def _memory_lines(sample: MachineSample, facts: ModelFacts | None) -> list[Line]:
    found = []
    if facts is not None:
        found.append(line(muted("model "), resident(sample, facts), muted(" resident")))
        each = lines.in_bytes(facts.kv_bytes_per_position)
        found.append(line(muted("KV    "), lines.size(facts.kv_bytes), muted(f"  {each}/token")))
    own, free = lines.size(sample.own_bytes), lines.size(sample.available_bytes)
    found.append(line(muted("app   "), own, muted("  free "), free))
    if sample.faults_per_s is not None:
        # The disk light: pages of the model come from disk, so another program has pushed them out.
        light = warning("  reading!") if sample.faults_per_s >= 1 else muted("  idle")
        found.append(line(muted("disk  "), f"{sample.faults_per_s:4.0f}/s", light))
    return found


def interface_line(view: PerformanceView) -> Line:
    """Return what the interface itself costs."""
    return line(warning(interface_text(view)) if view.slowed_by > 1 else muted(interface_text(view)))


def interface_text(view: PerformanceView) -> str:
    """Write what the interface itself costs, and that it holds back."""
    cost = f"{100 * view.interface_cost:2.0f}" if view.interface_cost is not None else " -"
    slowed = f", slowed {view.slowed_by}x" if view.slowed_by > 1 else ""
    return f"screen {cost} %{slowed}"

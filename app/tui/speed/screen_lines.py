"""Text of the performance screen, section by section, for any width."""

from __future__ import annotations

from datetime import datetime

from app.chat.status import Activity
from app.chat.thinking_command import describe_thinking
from app.machine.paced import or_none
from app.machine.records import INTERFACE, PhaseCost, TimeSpent, bytes_per_token
from app.machine.sample import MachineSample
from app.program.settings import AUTO
from app.text import figures
from app.text.glyphs import Glyphs
from app.tui.speed import lines, strip_lines
from app.tui.speed.lines import Line, Role, Span, heading, line, muted, warning
from app.tui.speed.watch import PerformanceView

_NAMES = {"qkv": "q k v", "attention output": "attn output"}
_NAME_COLUMNS = 14
_DATED_COLUMNS = 62
"""Columns that the table of speeds takes with the day of the best one."""
_NO_REPLY = "no reply yet: send a message in the chat, and come back"
_WORTH_A_WORD = 0.03
"""Smallest difference to earlier replies that is reported."""


def speed_lines(view: PerformanceView, width: int) -> list[Line]:
    """Return the table of speeds over all windows, and how this reply compares."""
    speed, earlier = view.speed, view.figures.earlier
    best = lines.rate(earlier.best_tps, 7) if earlier else f"{'-':>7}"
    when = f"  {_day(earlier.best_unix_s)}" if earlier and width >= _DATED_COLUMNS else ""
    windows = (speed.reply, speed.last_10_s, speed.last_1_s)
    table = [
        line(heading(f"{'Speed':<15}"), muted(f"{'this reply':>10}{'10 s':>8}{'1 s':>8}{'best here':>13}")),
        line(
            muted(f"{'writing tok/s':<15}"), f"{lines.rate(windows[0], 10)}",
            *(lines.rate(tps, 8) for tps in windows[1:]), f"      {best}", muted(when),
        ),
        line(muted(f"{'ms per token':<15}"), lines.milliseconds(windows[0], 10),
             *(lines.milliseconds(tps, 8) for tps in windows[1:])),
        line(muted(f"{'reading tok/s':<15}"), lines.rate(speed.prompt, 10), muted(_reading(view))),
    ]  # fmt: skip
    thinking = [line(muted(f"{describe_thinking(view.thinking)} (/think)"))] if view.thinking not in ("", AUTO) else []
    return lines.clipped([*table, _comparison(view, width), *thinking], width)


def _reading(view: PerformanceView) -> str:
    status = view.status
    if status.activity is Activity.READING and status.total:
        return f"   reading {figures.count(status.done)} of {figures.count(status.total)} tokens"
    return "" if status.activity in (Activity.WRITING, Activity.READY) else f"   {Activity(status.activity).value}"


def _comparison(view: PerformanceView, width: int) -> Line:
    """Say how this reply compares with earlier ones of the same model, threads and weights mode."""
    earlier, tps, facts = view.figures.earlier, view.speed.reply, view.figures.facts
    if earlier is None or facts is None:
        return line(muted("no earlier reply with this model and threads"))
    n, threads = earlier.n_replies, view.figures.threads or view.status.threads
    of = f"the median {lines.rate(earlier.median_tps).strip()} of {n} earlier repl{'y' if n == 1 else 'ies'}"
    how = f" ({figures.counted(threads, 'thread')}, {view.figures.weights_mode or facts.weights_mode})"
    if len("to compare with: ") + len(of) + len(how) > width:
        how = ""
    if tps <= 0:
        return line(muted(f"to compare with: {of}{how}"))
    ratio = tps / earlier.median_tps - 1
    if abs(ratio) < _WORTH_A_WORD:
        return line("as fast as ", muted(of + how))
    text = f"{100 * abs(ratio):.0f} % {'above' if ratio > 0 else 'below'} "
    return line(Span(text, Role.GOOD) if ratio > 0 else warning(text), muted(of + how))


def _day(unix_s: float) -> str:
    return or_none(lambda: datetime.fromtimestamp(unix_s).astimezone().strftime("%d %b")) or ""


def ceiling_lines(view: PerformanceView, width: int, glyphs: Glyphs) -> list[Line]:
    """Say which share of the memory's limit is reached, and what is read for that."""
    facts = view.figures.facts
    if facts is None:
        return [line(muted("no model is loaded: /model PATH in the chat loads one"))]
    amount = lines.in_bytes(bytes_per_token(facts, view.status.context_used))
    if view.ceiling is None:
        return [line(muted(f"ceiling not measured yet (a token reads {amount})"))]
    share = strip_lines.ceiling_share(view)
    bar = Span(lines.bar(view.ceiling.share(strip_lines.shown_tps(view)), 10, glyphs), Role.BAR)
    parts = [f"of {figures.rate(view.ceiling.tps)} tok/s", "that memory allows"]
    parts.append(f"({view.ceiling.read_gbps:.1f} GB/s, {amount} a token)")
    if share.startswith(">"):
        parts.append("the weights lie in the cache")
    begin = f"ceiling {share:>6} "
    rows = lines.spread(parts, max(1, width - len(begin) - 11), " ")
    found = [line(muted(begin[:8]), begin[8:], bar, muted(" " + rows[0]))]
    return lines.clipped([*found, *(line(muted(" " * 8 + row)) for row in rows[1:])], width)


def stutter_lines(view: PerformanceView, width: int, glyphs: Glyphs) -> list[Line]:
    """Name the newest stutter with its cause."""
    if not view.n_stutters:
        return [line(muted("no stutters" if view.tokens else "no stutters yet"))]
    stutter, cause = view.stutters[-1]
    ms = 1000 * (stutter.end_s - stutter.begin_s)
    count = figures.counted(view.n_stutters, "stutter")
    rows = lines.spread([f"token {stutter.token + 1} took {ms:.0f} ms:", cause], max(1, width - len(count) - 4), " ")
    found = [line(warning(f"{glyphs.mark} {count}"), "  " + rows[0])]
    return lines.clipped([*found, *(line("  " + row) for row in rows[1:])], width)


def time_lines(spent: TimeSpent | None, width: int, glyphs: Glyphs) -> list[Line]:
    """Return where the last reply's time went: one bar, and what its fillings mean."""
    if spent is None:
        return [line(heading("Where the last reply's time went")), line(muted("no complete reply yet"))]
    total_s = spent.total_s
    title = line(heading("Where the last reply's time went"), f" ({figures.seconds(total_s)})")
    parts = _parts(spent)
    # Fillings tell the parts from each other, so the bar reads without colour.
    bar = "".join(
        glyph * cells for glyph, cells in zip(glyphs.parts, _cells([s for s, _ in parts], width), strict=True)
    )
    legend = [f"{glyph} {text}" for glyph, (_, text) in zip(glyphs.parts, parts, strict=True)]
    return [title, line(Span(bar, Role.BAR)), *(line(row) for row in lines.spread(legend, width, "  "))]


def _parts(spent: TimeSpent) -> list[tuple[float, str]]:
    n_pages = spent.disk_pages
    pages = "" if n_pages is None else f" ({figures.count(n_pages)} page{'' if n_pages == 1 else 's'})"
    reused = f", {figures.count(spent.reused_tokens)} from cache" if spent.reused_tokens else ""
    prompt = f"reading {figures.count(spent.prompt_tokens)} tokens{reused}"
    return [
        (spent.waited_s, f"waiting {_short(spent.waited_s)}"),
        (spent.disk_s, f"disk {_short(spent.disk_s)}{pages}"),
        (spent.prefill_s, f"{prompt} {_short(spent.prefill_s)}"),
        (spent.first_s, f"first token {_short(spent.first_s)}"),
        (spent.decode_s, f"writing {figures.count(spent.tokens)} tokens {_short(spent.decode_s)}"),
        (spent.interface_s, f"interface {_short(spent.interface_s)}"),
    ]


def _short(seconds: float) -> str:
    return "0" if seconds < 0.005 else figures.seconds(seconds)


def _cells(seconds: list[float], width: int) -> list[int]:
    """Share out the cells of a bar; rounding goes to the largest, so that the bar is always as wide."""
    total_s = sum(seconds)
    if total_s <= 0 or width < 1:
        return [0] * len(seconds)
    cells = [round(width * part / total_s) for part in seconds]
    largest = cells.index(max(cells))
    cells[largest] = max(0, cells[largest] + width - sum(cells))
    return cells


def phase_lines(view: PerformanceView, width: int, glyphs: Glyphs) -> list[Line]:
    """Return where a token's time goes, as bars."""
    reads = view.status.activity is Activity.READING and bool(view.figures.prompt_phases)
    phases = view.figures.prompt_phases if reads else view.figures.decode_phases
    whose = "a prompt token's" if reads else "a token's"
    title = f"Where {whose} time goes"
    if not phases:
        return [line(heading(title)), line(muted(_NO_REPLY))]
    total_ms = sum(phase.ms_per_token for phase in phases)
    columns = f"{'ms':>8}{'GB/s':>8}{'share':>8}"
    head = f" ({_ms(total_ms).strip()} ms)"
    bar_width = max(4, width - _NAME_COLUMNS - len(columns) - 1)
    left = _NAME_COLUMNS + bar_width + 1
    if len(title) + len(head) > left:
        title = f"{whose.capitalize()} time"
    return lines.clipped(
        [
            line(heading(title), head, " " * (left - len(title) - len(head)), muted(columns)),
            *(_phase_line(phase, phases, bar_width, glyphs) for phase in phases),
        ],
        width,
    )


def _phase_line(phase: PhaseCost, phases: tuple[PhaseCost, ...], bar_width: int, glyphs: Glyphs) -> Line:
    longest = max(other.share for other in phases)
    filled = lines.solid(phase.share / longest if longest > 0 else 0.0, bar_width, glyphs)
    gbps = f"{phase.gbps:8.1f}" if phase.gbps is not None else f"{'-':>8}"
    name = _NAMES.get(phase.name, phase.name)
    role = Role.PLAIN if phase.name != INTERFACE else Role.MUTED
    return line(
        Span(f"{name:<{_NAME_COLUMNS}}"[:_NAME_COLUMNS], role),
        Span(filled, Role.BAR),
        f" {_ms(phase.ms_per_token):>8}{gbps}{lines.percent(phase.share, 6)}",
    )


def _ms(ms: float) -> str:
    return f"{ms:.2f}" if ms < 9.995 else f"{ms:.1f}" if ms < 99.95 else f"{ms:.0f}"


def machine_lines(view: PerformanceView, width: int, glyphs: Glyphs) -> list[Line]:
    """Return memory, cores and the interface's own cost."""
    sample, facts = view.sample, view.figures.facts
    if sample is None:
        return [line(muted("looking at the machine"))]
    memory = []
    if facts is not None:
        memory.append(f"model {strip_lines.resident(sample, facts)} resident")
        memory.append(f"KV {figures.size(facts.kv_bytes)}, {lines.in_bytes(facts.kv_bytes_per_position)} a token")
    memory += [f"program {lines.size(sample.own_bytes)}", f"free {lines.size(sample.available_bytes)}"]
    if sample.swap_used_bytes is not None:
        memory.append(f"swap {figures.size(sample.swap_used_bytes)}")
    if sample.faults_per_s is not None:
        memory.append(f"{sample.faults_per_s:3.0f} pages/s from disk")
    rows = _section("Memory", memory, width, glyphs) + _section("Cores", _core_parts(sample, glyphs), width, glyphs)
    return rows + _section("Threads", _thread_parts(view, sample), width, glyphs)


def _core_parts(sample: MachineSample, glyphs: Glyphs) -> list[str]:
    loads = sample.core_loads
    if len(loads) <= 8:
        parts = [f"{number} {lines.bar(load, 6, glyphs)} {lines.percent(load)}" for number, load in enumerate(loads)]
    else:
        parts = ["".join(strip_lines.level(load, glyphs) for load in loads)]
    if sample.clock_ghz is not None:
        most = f" of {sample.most_clock_ghz:.1f}" if sample.most_clock_ghz else ""
        parts.append(f"{sample.clock_ghz:.1f}{most} GHz")
    if sample.temperature_c is not None:
        parts.append(f"{sample.temperature_c:.0f} °C")
    if sample.throttled:
        parts.append("throttled by heat!")
    if sample.governor:
        parts.append(f"governor {sample.governor.name}{' !' if sample.governor.holds_clock_down else ''}")
    if sample.battery is not None:
        supply = {True: "on mains", False: "on battery", None: "battery"}[sample.battery.on_mains]
        parts.append(f"{supply}, {sample.battery.percent:.0f} %")
    return parts


def _thread_parts(view: PerformanceView, sample: MachineSample) -> list[str]:
    parts = []
    if sample.threads is not None:
        working = sample.threads_working if sample.threads_working is not None else "-"
        parts.append(f"{working} of {sample.threads} computing")
    if sample.others_cores is not None:
        parts.append(f"other programs {sample.others_cores:.1f} cores")
    cost = f"{100 * view.interface_cost:2.0f}" if view.interface_cost is not None else " -"
    parts.append(f"this interface {cost} % of a core")
    if view.slowed_by > 1:
        if view.costs_too_much:
            parts.append(f"slowed {view.slowed_by}x until it costs less")
        else:
            parts.append(f"slowed {view.slowed_by}x to leave the cores to the engine")
    return parts


def _section(title: str, parts: list[str], width: int, glyphs: Glyphs) -> list[Line]:
    rows = lines.spread(parts, max(1, width - 8), glyphs.between)
    return [
        line(heading(f"{title if number == 0 else '':<8}"), row[: max(0, width - 8)]) for number, row in enumerate(rows)
    ]

"""Lines on speed, with figures to compare it with, and on where the time of a reply goes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from textwrap import wrap

from app.backend.status import Activity, EngineStatus
from app.machine.sensors.cached_reading import or_none
from app.machine.sensors.records import INTERFACE, PhaseCost, TimeSpent
from app.machine.sensors.reply_history import Basis
from app.machine.sensors.speed_causes import SpeedReadings, SpeedReason, speed_reason
from app.text import figures, guesses
from app.text.glyphs import Glyphs
from app.text.record import record
from app.tui.drawing import lines
from app.tui.drawing.graph import Graph
from app.tui.drawing.lines import (
    EMPTY,
    Line,
    Span,
    SpanRole,
    apart,
    caution,
    joined,
    level_of,
    line,
    muted,
    strong,
)
from app.tui.drawing.panels import big_digits, cells_of, gauge, part_glyph
from app.tui.speed.change_lines import change_marks
from app.tui.speed.watch import PerformanceView

_WORTH_A_WORD = 0.03


def is_reading(view: PerformanceView) -> bool:
    """Whether the engine reads a prompt, whose speed is then shown."""
    return view.status.activity is Activity.READING


def shown_tps(view: PerformanceView) -> float:
    """Return the speed for the large digits: of the last ten seconds, or of a finished reply."""
    if is_reading(view):
        return view.status.rate_tps
    if view.status.activity is Activity.WRITING:
        return view.speed.last_10_s
    return view.speed.reply


def limit_share(view: PerformanceView) -> float | None:
    """Return the speed as a share of the memory's limit; None if that is unknown or irrelevant."""
    if view.ceiling is None or is_reading(view):
        return None
    return view.ceiling.share(shown_tps(view))


def share_of_usual(view: PerformanceView) -> float | None:
    """Return the speed as a share of the usual one here; None if there is no usual speed."""
    tps = shown_tps(view)
    earlier = view.figures.earlier
    if is_reading(view) or earlier is None or tps <= 0 or earlier.median_tps <= 0:
        return None
    return tps / earlier.median_tps


def reason_of(view: PerformanceView) -> SpeedReason:
    """Return what bounds the shown speed."""
    facts = view.figures.facts
    earlier = view.figures.earlier
    if is_reading(view):
        return speed_reason(SpeedReadings(shown_tps(view), causes=view.causes))
    context_share = 0.0
    if facts is not None:
        context_share = facts.context_share(view.status.context_used)
    usual_tps = 0.0
    if earlier is not None and earlier.usual.basis is Basis.MEASURED:
        usual_tps = earlier.median_tps
    memory_share = None
    if view.ceiling is not None:
        memory_share = view.ceiling.memory_share(shown_tps(view))
    return speed_reason(
        SpeedReadings(shown_tps(view), usual_tps, memory_share, context_share, view.causes)
    )


def reason_lines(view: PerformanceView, width: int) -> list[Line]:
    """Return the sentence on what bounds the speed, in short lines; empty without a reply."""
    reason = reason_of(view)
    role = SpanRole.MUTED
    if reason.is_slow:
        role = SpanRole.CAUTION
    return [line(Span(row, role)) for row in wrap(reason.text, max(1, width))]


def graph_of(view: PerformanceView) -> Graph:
    """Return the reply's speed as a graph, with the limit and the median of earlier replies."""
    limit_tps = 0.0
    median_tps = 0.0
    median_name = "usual"
    if view.ceiling:
        limit_tps = view.ceiling.tps
    if view.figures.earlier:
        median_tps = view.figures.earlier.median_tps
        median_name = view.figures.earlier.median_name
    changes = change_marks(view.changes)
    return Graph(view.rates_tps, limit_tps, median_tps, view.marked_seconds, changes, median_name)


def name_of(view: PerformanceView) -> str:
    """Return the title of the panel."""
    if is_reading(view):
        return "Reading"
    return "Writing"


def number_lines(view: PerformanceView, width: int, glyphs: Glyphs) -> list[Line]:
    """Return the speed in large digits, with its unit and the time per token."""
    tps = shown_tps(view)
    usual_share = share_of_usual(view)
    if is_reading(view):
        role = SpanRole.READING
    elif usual_share is not None:
        role = level_of(usual_share)
    else:
        role = SpanRole.WRITING
    digits = "-"
    time_line = EMPTY
    if tps > 0:
        digits = figures.rate(tps)
    rows = big_digits(digits, glyphs)
    if tps > 0:
        text = f"  {lines.milliseconds(tps).strip()} ms"
        if len(rows[-1]) + len(f"{text}/token") <= width:
            text = f"{text}/token"
        time_line = line(muted(text))

    if not glyphs.halves:
        return [line(Span(rows[1], role), strong(" tok/s"), *time_line)]
    units = [EMPTY, (strong("  tok/s"),), time_line]
    return [(Span(row, role), *unit) for row, unit in zip(rows, units, strict=True)]


def limit_lines(view: PerformanceView, width: int, glyphs: Glyphs) -> list[Line]:
    """Return a gauge with the share of the machine's limit, or with the progress of reading."""
    status = view.status
    if is_reading(view) and not status.server:  # servers do not report progress
        share = 0.0
        if status.total:
            share = status.done / status.total
        amount = f"{figures.count(status.done)} of {figures.count(status.total)}"
        return [
            _gauge_line("prompt", share, lines.percent(share, 4), width, glyphs, SpanRole.READING),
            line(muted(amount)),
        ]
    if view.figures.facts is None and status.server:
        return [line(muted("computed elsewhere"))]
    if view.figures.facts is None:
        return [line(muted(absent_model_text(status)))]
    if view.ceiling is None:
        return [line(muted("limit: not measured yet"))]
    share = view.ceiling.share(shown_tps(view))
    if view.ceiling.is_beaten:
        basis = "reached"
    else:
        basis = f"{view.ceiling.read_gbps:.1f} GB/s"
    amount = f"of {figures.rate(view.ceiling.tps)} tok/s ({basis})"
    return [
        _gauge_line("limit", share, lines.percent(share, 4), width, glyphs),
        line(muted(amount)),
    ]


def absent_model_text(status: EngineStatus) -> str:
    """Return why there are no figures of a model: it is being prepared, or none is open."""
    match status.activity:
        case Activity.COMPILING:
            share = 100 * status.done // max(1, status.total)
            return f"preparing the model: {share} %"
        case Activity.LOADING:
            return "opening the model"
    return "no model is open"


def _gauge_line(
    name: str,
    share: float,
    text: str,
    width: int,
    glyphs: Glyphs,
    role: SpanRole = SpanRole.ACCENT,
) -> Line:
    cells = max(3, width - len(name) - len(text) - 2)
    return (muted(f"{name} "), *gauge(share, cells, glyphs, role), strong(f" {text}"))


def compared_lines(view: PerformanceView, width: int) -> list[Line]:
    """Return a table of speeds: last second, this reply, usual, best, reading."""
    speed = view.speed
    earlier = view.figures.earlier
    rows = [("last second", speed.last_1_s, EMPTY), ("this reply", speed.reply, EMPTY)]
    if earlier is not None:
        ratio = 0.0
        if speed.reply > 0:
            ratio = speed.reply / earlier.median_tps - 1
        usual = "usual here", earlier.median_tps, _difference(ratio)
        if earlier.usual.basis is Basis.BUSY:
            usual = earlier.median_name, earlier.median_tps, line(muted("measured"))
        rows += [
            usual,
            ("best here", earlier.best_tps, line(muted(_day(earlier.best_unix_s)))),
        ]
    rows.append(("reading", speed.prompt, EMPTY))
    return [
        lines.clipped((muted(f"{name:<12}"), strong(lines.rate(tps)), Span("  "), *remark), width)
        for name, tps, remark in rows
    ]


def _difference(ratio: float) -> Line:
    if abs(ratio) < _WORTH_A_WORD:
        if ratio:
            return line(muted("as usual"))
        return EMPTY
    text = f"{100 * ratio:+.0f} %"
    if ratio > 0:
        return line(Span(text, SpanRole.GOOD))
    return line(caution(text))


def _day(unix_s: float) -> str:
    return or_none(lambda: datetime.fromtimestamp(unix_s).astimezone().strftime("%d %b")) or ""


def stutter_line(view: PerformanceView, glyphs: Glyphs) -> Line:
    """Return the number of stutters, and the newest one with its cause."""
    if view.stutter is None:
        return EMPTY
    stutter, cause = view.stutter
    ms = 1000 * (stutter.end_s - stutter.begin_s)
    count = figures.counted(view.n_stutters, "stutter")
    text = f" · token {stutter.token + 1} took {ms:.0f} ms"
    if cause:
        text += f": {cause}"
    return line(caution(f"{glyphs.mark} {count}"), muted(text))


_NAMES = {"qkv": "q k v", "attention output": "attn output", INTERFACE: "screen"}
_NAME_COLUMNS = 13
_GBPS_FROM_COLUMNS = 48
_NO_REPLY = "no complete reply yet"


@record
class _ReplyPhase:
    """Phase of a reply."""

    seconds: float
    role: SpanRole
    glyph: int
    """Index of the phase's character in the bar."""
    name: str
    details: tuple[str, ...] = ()
    """Remarks, shown as far as they fit in the line."""


def reply_lines(spent: TimeSpent | None, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """Return a bar with the phases of the last reply in order, and lines on the longest ones."""
    if spent is None:
        return [line(muted(_NO_REPLY))]
    phases = _reply_phases(spent)
    cells = zip(phases, cells_of([phase.seconds for phase in phases], width), strict=True)
    timeline = joined(Span(part_glyph(phase.glyph, glyphs) * n, phase.role) for phase, n in cells)
    longest = sorted(
        (phase for phase in phases if phase.seconds >= 0.005), key=lambda phase: -phase.seconds
    )
    phase_lines = [_reply_phase_line(phase, width, glyphs) for phase in longest]
    return [timeline, *phase_lines, *_guess_lines(spent, width)][: max(1, rows)]


def _guess_lines(spent: TimeSpent, width: int) -> list[Line]:
    """Return how many guesses were right and what they saved, and a line for each kind."""
    if not spent.guesses:
        return []
    saving = guesses.saving(spent.guess_saved_s)
    title = " · ".join(filter(None, ("guesses right", saving)))
    rows = [(title, guesses.right_of(*spent.guesses))]
    rows += [(f"  {guesses.NAMES[kind.kind]}", guesses.right_of(kind)) for kind in spent.guesses]
    return [apart(line(muted(name)), line(muted(right)), width) for name, right in rows]


def _reply_phases(spent: TimeSpent) -> list[_ReplyPhase]:
    pages = ""
    if spent.disk_pages is not None:
        pages = figures.counted(spent.disk_pages, "page")
    cached = ""
    if spent.reused_tokens:
        cached = f" · {figures.count(spent.reused_tokens)} cached"
    prompt_size = f"{figures.count(spent.prompt_tokens)} tokens"
    return [
        _ReplyPhase(spent.waited_s, SpanRole.MUTED, 3, "waiting"),
        _ReplyPhase(spent.disk_s, SpanRole.CAUTION, 4, "disk", (pages,)),
        _ReplyPhase(spent.prefill_s, SpanRole.READING, 1, "reading", (prompt_size, cached)),
        _ReplyPhase(spent.first_s, SpanRole.ACCENT, 2, "first word"),
        _ReplyPhase(
            spent.decode_s,
            SpanRole.WRITING,
            0,
            "writing",
            (f"{figures.count(spent.tokens)} tokens",),
        ),
        _ReplyPhase(spent.interface_s, SpanRole.MUTED, 5, "screen"),
    ]


def _reply_phase_line(phase: _ReplyPhase, width: int, glyphs: Glyphs) -> Line:
    time = line(strong(f"{figures.seconds(phase.seconds):>8}"))
    name = line(Span(part_glyph(phase.glyph, glyphs), phase.role), f" {phase.name} ")
    for detail in phase.details:
        if lines.width_of(name) + len(detail) + 1 + lines.width_of(time) <= width:
            name = (*name, muted(detail))
    return apart(name, time, width)


def token_title(view: PerformanceView) -> str:
    """Return the title of the table of phases."""
    if _reads(view):
        return "Time per prompt token"
    return "Time per token"


def total_text(phases: Sequence[PhaseCost]) -> str:
    """Return the time of all phases; "" if there are none."""
    if not phases:
        return ""
    return f"{_ms(sum(phase.ms_per_token for phase in phases))} ms"


def _reads(view: PerformanceView) -> bool:
    return view.status.activity is Activity.READING and bool(view.figures.prompt_phases)


def phases_of(view: PerformanceView) -> tuple[PhaseCost, ...]:
    """Return the phases of a token of the prompt while it is read, or else of the reply."""
    if _reads(view):
        return view.figures.prompt_phases
    return view.figures.decode_phases


def token_lines(phases: Sequence[PhaseCost], width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """Return the phases of a token as bars, the longest ones if not all have room."""
    if not phases:
        return [line(muted(_NO_REPLY))]
    if len(phases) > rows:
        longest = sorted(phases, key=lambda phase: -phase.share)[: max(1, rows)]
        phases = tuple(phase for phase in phases if phase in longest)
    max_share = max(phase.share for phase in phases)
    return [_phase_line(phase, max_share, width, glyphs) for phase in phases]


def _phase_line(phase: PhaseCost, max_share: float, width: int, glyphs: Glyphs) -> Line:
    name = _NAMES.get(phase.name, phase.name)
    numbers = [strong(f"{_ms(phase.ms_per_token):>6}"), Span(lines.percent(phase.share, 5))]
    if width >= _GBPS_FROM_COLUMNS:
        numbers.insert(1, muted(" ms"))
        gbps = ""
        if phase.gbps is not None:
            gbps = f"{phase.gbps:6.1f} GB/s"
        numbers.append(muted(f"{gbps:>12}"))
    cells = max(3, width - _NAME_COLUMNS - lines.width_of(tuple(numbers)))
    if phase.name == INTERFACE:
        role = SpanRole.MUTED
    elif phase.gbps is None:
        role = SpanRole.READING
    else:
        role = SpanRole.WRITING
    fraction = 0.0
    if max_share > 0:
        fraction = phase.share / max_share
    bar = gauge(fraction, cells, glyphs, role, empty=" ")
    return (Span(f"{name:<{_NAME_COLUMNS}}"[:_NAME_COLUMNS]), *bar, *numbers)


def _ms(ms: float) -> str:
    if ms < 9.995:
        return f"{ms:.2f}"
    if ms < 99.95:
        return f"{ms:.1f}"
    return f"{ms:.0f}"

"""How fast the model writes or reads, with what to compare that with; and where the time of a reply
or a token goes."""

from __future__ import annotations

from datetime import datetime

from app.backend.status import Activity
from app.machine.sensors.cached_reading import or_none
from app.machine.sensors.records import INTERFACE, PhaseCost, TimeSpent
from app.text import figures
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
from app.tui.speed.watch import PerformanceView

_WORTH_A_WORD = 0.03


def is_reading(view: PerformanceView) -> bool:
    """Whether the speed to show is that of the prompt."""
    return view.status.activity is Activity.READING


def shown_tps(view: PerformanceView) -> float:
    """Return the speed that is shown large: of the last ten seconds, or of the whole reply once it
    is over."""
    if is_reading(view):
        return view.status.rate_tps
    if view.status.activity is Activity.WRITING:
        return view.speed.last_10_s
    return view.speed.reply


def limit_share(view: PerformanceView) -> float | None:
    """Return the share of what memory allows; None where that says nothing."""
    if view.ceiling is None or is_reading(view):
        return None
    return view.ceiling.share(shown_tps(view))


def graph_of(view: PerformanceView) -> Graph:
    """Return the curve of the reply."""
    if view.ceiling:
        limit_tps = view.ceiling.tps
    else:
        limit_tps = 0.0
    earlier = view.figures.earlier
    return Graph(
        view.rates_tps, limit_tps, earlier.median_tps if earlier else 0.0, view.marked_seconds
    )


def name_of(view: PerformanceView) -> str:
    """Return the panel's title."""
    if is_reading(view):
        return "Reading"
    return "Writing"


def number_lines(view: PerformanceView, width: int, glyphs: Glyphs) -> list[Line]:
    """Return the speed in large digits, its unit and, next to it, the time of a token, in fewer
    words if need be."""
    tps = shown_tps(view)
    share = limit_share(view)
    if is_reading(view):
        role = SpanRole.READING
    elif share and tps > 0:
        role = level_of(share)
    else:
        role = SpanRole.WRITING
    rows = big_digits(figures.rate(tps) if tps > 0 else "-", glyphs)
    ms = f"  {lines.milliseconds(tps).strip()} ms"
    if len(rows[-1]) + len(f"{ms} a token") <= width:
        words = f"{ms} a token"
    else:
        words = ms
    if tps > 0:
        each = line(muted(words))
    else:
        each = EMPTY
    extras = [EMPTY, (strong("  tok/s"),), each]
    if not glyphs.halves:
        return [line(Span(rows[1], role), strong(" tok/s"), *each)]
    return [(Span(row, role), *extra) for row, extra in zip(rows, extras, strict=True)]


def limit_lines(view: PerformanceView, width: int, glyphs: Glyphs) -> list[Line]:
    """Say which share of the machine's limit is reached; while the prompt is read, which part of it
    is."""
    status = view.status
    if is_reading(view) and not status.server:  # a server does not tell how far it is
        if status.total:
            share = status.done / status.total
        else:
            share = 0.0
        of = f"{figures.count(status.done)} of {figures.count(status.total)}"
        return [
            _gauge_line("prompt", share, lines.percent(share, 4), width, glyphs, SpanRole.READING),
            line(muted(of)),
        ]
    if view.figures.facts is None:
        return [line(muted("computed elsewhere" if status.server else "no model is open"))]
    if view.ceiling is None:
        return [line(muted("limit: measured when idle"))]
    share = view.ceiling.share(shown_tps(view))
    if view.ceiling.is_beaten:
        basis = "reached"
    else:
        basis = f"{view.ceiling.read_gbps:.1f} GB/s"
    of = f"of {figures.rate(view.ceiling.tps)} tok/s ({basis})"
    return [
        _gauge_line("limit", share, lines.percent(share, 4), width, glyphs, level_of(share)),
        line(muted(of)),
    ]


def _gauge_line(
    name: str, share: float, text: str, width: int, glyphs: Glyphs, role: SpanRole
) -> Line:
    cells = max(3, width - len(name) - len(text) - 2)
    return (muted(f"{name} "), *gauge(share, cells, glyphs, role), strong(f" {text}"))


def compared_lines(view: PerformanceView, width: int) -> list[Line]:
    """Return a table of speeds: of the last second, of the reply, the usual one, the best one, that
    of reading."""
    speed = view.speed
    earlier = view.figures.earlier
    rows = [("last second", speed.last_1_s, EMPTY), ("this reply", speed.reply, EMPTY)]
    if earlier is not None:
        if speed.reply > 0:
            ratio = speed.reply / earlier.median_tps - 1
        else:
            ratio = 0.0
        rows += [
            ("usual here", earlier.median_tps, _difference(ratio)),
            ("best here", earlier.best_tps, line(muted(_day(earlier.best_unix_s)))),
        ]
    rows.append(("reading", speed.prompt, EMPTY))
    return [
        lines.clipped((muted(f"{name:<12}"), strong(lines.rate(tps)), Span("  "), *extra), width)
        for name, tps, extra in rows
    ]


def _difference(ratio: float) -> Line:
    if abs(ratio) < _WORTH_A_WORD:
        if ratio:
            return line(muted("as usual"))
        return EMPTY
    text = f"{100 * ratio:+.0f} %"
    return line(Span(text, SpanRole.GOOD) if ratio > 0 else caution(text))


def _day(unix_s: float) -> str:
    return or_none(lambda: datetime.fromtimestamp(unix_s).astimezone().strftime("%d %b")) or ""


def stutter_line(view: PerformanceView, glyphs: Glyphs) -> Line:
    """Name the newest stutter with its cause."""
    if view.stutter is None:
        return EMPTY
    stutter, cause = view.stutter
    ms = 1000 * (stutter.end_s - stutter.begin_s)
    count = figures.counted(view.n_stutters, "stutter")
    return line(
        caution(f"{glyphs.mark} {count}"),
        muted(f" token {stutter.token + 1} took {ms:.0f} ms: {cause}"),
    )


_NAMES = {"qkv": "q k v", "attention output": "attn output", INTERFACE: "screen"}
_NAME_COLUMNS = 13
_GBPS_FROM_COLUMNS = 48
_NO_REPLY = "no complete reply yet"


@record
class _Phase:
    """A phase of a reply, in the order of time."""

    seconds: float
    role: SpanRole
    glyph: int
    """Place in the bar's alphabet: the height says which phase it is."""
    name: str
    details: tuple[str, ...] = ()
    """Those that do not fit into the line are left out."""


def reply_lines(spent: TimeSpent | None, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """Return the phases of the last reply: one bar in the order of time, and its longest ones by
    name."""
    if spent is None:
        return [line(muted(_NO_REPLY))]
    parts = _parts(spent)
    cells = zip(parts, cells_of([part.seconds for part in parts], width), strict=True)
    timeline = joined(Span(part_glyph(part.glyph, glyphs) * n, part.role) for part, n in cells)
    longest = sorted(
        (part for part in parts if part.seconds >= 0.005), key=lambda part: -part.seconds
    )
    return [timeline, *(_part_line(part, width, glyphs) for part in longest[: max(0, rows - 1)])]


def _parts(spent: TimeSpent) -> list[_Phase]:
    if spent.disk_pages is None:
        pages = ""
    else:
        pages = figures.counted(spent.disk_pages, "page")
    if spent.reused_tokens:
        cached = f", {figures.count(spent.reused_tokens)} from cache"
    else:
        cached = ""
    read = f"{figures.count(spent.prompt_tokens)} tokens"
    return [
        _Phase(spent.waited_s, SpanRole.MUTED, 3, "waiting"),
        _Phase(spent.disk_s, SpanRole.CAUTION, 4, "disk", (pages,)),
        _Phase(spent.prefill_s, SpanRole.READING, 1, "reading", (read, cached)),
        _Phase(spent.first_s, SpanRole.ACCENT, 2, "first token"),
        _Phase(
            spent.decode_s,
            SpanRole.WRITING,
            0,
            "writing",
            (f"{figures.count(spent.tokens)} tokens",),
        ),
        _Phase(spent.interface_s, SpanRole.MUTED, 5, "screen"),
    ]


def _part_line(part: _Phase, width: int, glyphs: Glyphs) -> Line:
    time = line(strong(f"{figures.seconds(part.seconds):>8}"))
    name = line(Span(part_glyph(part.glyph, glyphs), part.role), f" {part.name} ")
    for detail in part.details:
        if lines.width_of(name) + len(detail) + 1 + lines.width_of(time) <= width:
            name = (*name, muted(detail))
    return apart(name, time, width)


def token_title(view: PerformanceView) -> tuple[str, str]:
    """Return the title of the table of phases, and the time of all together."""
    phases = _phases(view)
    if _reads(view):
        whose = "prompt token"
    else:
        whose = "token"
    return (
        f"Time of a {whose}",
        f"{_ms(sum(phase.ms_per_token for phase in phases))} ms" if phases else "",
    )


def _reads(view: PerformanceView) -> bool:
    return view.status.activity is Activity.READING and bool(view.figures.prompt_phases)


def _phases(view: PerformanceView) -> tuple[PhaseCost, ...]:
    if _reads(view):
        return view.figures.prompt_phases
    return view.figures.decode_phases


def token_lines(view: PerformanceView, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """Return where a token's time goes, as bars; of more phases than rows the longest."""
    phases = _phases(view)
    if not phases:
        return [line(muted(_NO_REPLY))]
    if len(phases) > rows:
        longest = sorted(phases, key=lambda phase: -phase.share)[: max(1, rows)]
        phases = tuple(phase for phase in phases if phase in longest)
    most = max(phase.share for phase in phases)
    return [_phase_line(phase, most, width, glyphs) for phase in phases]


def _phase_line(phase: PhaseCost, most: float, width: int, glyphs: Glyphs) -> Line:
    name = _NAMES.get(phase.name, phase.name)
    figures_of = [strong(f"{_ms(phase.ms_per_token):>6}"), Span(lines.percent(phase.share, 5))]
    if width >= _GBPS_FROM_COLUMNS:
        figures_of.insert(1, muted(" ms"))
        if phase.gbps is not None:
            gbps = f"{phase.gbps:6.1f} GB/s"
        else:
            gbps = ""
        figures_of.append(muted(f"{gbps:>12}"))
    cells = max(3, width - _NAME_COLUMNS - lines.width_of(tuple(figures_of)))
    if phase.name == INTERFACE:
        role = SpanRole.MUTED
    elif phase.gbps is None:
        role = SpanRole.READING
    else:
        role = SpanRole.WRITING
    drawn = gauge(phase.share / most if most > 0 else 0.0, cells, glyphs, role, empty=" ")
    return (Span(f"{name:<{_NAME_COLUMNS}}"[:_NAME_COLUMNS]), *drawn, *figures_of)


def _ms(ms: float) -> str:
    if ms < 9.995:
        return f"{ms:.2f}"
    if ms < 99.95:
        return f"{ms:.1f}"
    return f"{ms:.0f}"

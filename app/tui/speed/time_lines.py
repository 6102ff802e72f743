"""Where the time went: of the last reply, as a line of its phases, and of a token, as bars."""

from __future__ import annotations

from app.chat.status import Activity
from app.machine.records import INTERFACE, PhaseCost, TimeSpent
from app.text import figures
from app.text.glyphs import Glyphs
from app.text.record import record
from app.tui.drawing import lines
from app.tui.drawing.lines import Line, Role, Span, apart, line, muted, strong
from app.tui.drawing.panels import gauge, part_glyph, stacked
from app.tui.speed.watch import PerformanceView

_NAMES = {"qkv": "q k v", "attention output": "attn output", INTERFACE: "screen"}
_NAME_COLUMNS = 13
_GBPS_FROM_COLUMNS = 48
_NO_REPLY = "no complete reply yet"


@record
class _Part:
    """A phase of a reply, in the order of time."""

    seconds: float
    role: Role
    glyph: int
    """Which height it is drawn with."""
    name: str
    details: tuple[str, ...] = ()
    """Those that do not fit into the line are left out."""


def reply_lines(spent: TimeSpent | None, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """Return the phases of the last reply: one bar in the order of time, and its longest ones by name."""
    if spent is None:
        return [line(muted(_NO_REPLY))]
    parts = _parts(spent)
    # A place in the bar's alphabet for each phase, so that its height says which one it is.
    by_glyph: list[tuple[float, Role]] = [(0.0, Role.PLAIN)] * len(glyphs.parts)
    for part in parts:
        by_glyph[part.glyph] = (part.seconds, part.role)
    spans = {span.text[0]: span for span in stacked(by_glyph, width, glyphs)}
    signs = (part_glyph(part.glyph, glyphs) for part in parts)
    timeline = tuple(spans[sign] for sign in signs if sign in spans)
    longest = sorted((part for part in parts if part.seconds >= 0.005), key=lambda part: -part.seconds)
    return [timeline, *(_part_line(part, width, glyphs) for part in longest[: max(0, rows - 1)])]


def _parts(spent: TimeSpent) -> list[_Part]:
    pages = "" if spent.disk_pages is None else figures.counted(spent.disk_pages, "page")
    cached = f", {figures.count(spent.reused_tokens)} from cache" if spent.reused_tokens else ""
    read = f"{figures.count(spent.prompt_tokens)} tokens"
    return [
        _Part(spent.waited_s, Role.MUTED, 3, "waiting"),
        _Part(spent.disk_s, Role.CAUTION, 4, "disk", (pages,)),
        _Part(spent.prefill_s, Role.READING, 1, "reading", (read, cached)),
        _Part(spent.first_s, Role.ACCENT, 2, "first token"),
        _Part(spent.decode_s, Role.WRITING, 0, "writing", (f"{figures.count(spent.tokens)} tokens",)),
        _Part(spent.interface_s, Role.MUTED, 5, "screen"),
    ]


def _part_line(part: _Part, width: int, glyphs: Glyphs) -> Line:
    time = line(strong(f"{figures.seconds(part.seconds):>8}"))
    name = line(Span(part_glyph(part.glyph, glyphs), part.role), f" {part.name} ")
    for detail in part.details:
        if lines.width_of(name) + len(detail) + 1 + lines.width_of(time) <= width:
            name = (*name, muted(detail))
    return apart(name, time, width)


def token_title(view: PerformanceView) -> tuple[str, str]:
    """Return the title of the table of phases, and the time of all together."""
    phases = _phases(view)
    whose = "prompt token" if _reads(view) else "token"
    return f"Time of a {whose}", f"{_ms(sum(phase.ms_per_token for phase in phases))} ms" if phases else ""


def _reads(view: PerformanceView) -> bool:
    return view.status.activity is Activity.READING and bool(view.figures.prompt_phases)


def _phases(view: PerformanceView) -> tuple[PhaseCost, ...]:
    return view.figures.prompt_phases if _reads(view) else view.figures.decode_phases


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
        gbps = f"{phase.gbps:6.1f} GB/s" if phase.gbps is not None else ""
        figures_of.append(muted(f"{gbps:>12}"))
    cells = max(3, width - _NAME_COLUMNS - lines.width_of(tuple(figures_of)))
    role = Role.MUTED if phase.name == INTERFACE else Role.READING if phase.gbps is None else Role.WRITING
    drawn = gauge(phase.share / most if most > 0 else 0.0, cells, glyphs, role, empty=" ")
    return (Span(f"{name:<{_NAME_COLUMNS}}"[:_NAME_COLUMNS]), *drawn, *figures_of)


def _ms(ms: float) -> str:
    return f"{ms:.2f}" if ms < 9.995 else f"{ms:.1f}" if ms < 99.95 else f"{ms:.0f}"

"""The line at the bottom (speed, disk, threads, memory, context, activity), and the one above the
prompt: progress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from textual.content import Content
from textual.widgets import Static

from app.backend.status import Activity, EngineStatus
from app.machine.sensors.page_faults import LEAST_DISK_BYTES_PER_S
from app.machine.sensors.token_speed import RateHistory
from app.text import figures
from app.text import glyphs as alphabets
from app.text.record import record
from app.tui.drawing.lines import level
from app.tui.drawing.panels import cells_of

NEARLY_FULL = 0.9
BLOCKS = "█▓▒░"
ASCII = "#=+."
NAMES = ("system", "old", "new", "free")
_STYLES = ("$primary", "$secondary", "$success", "$text-muted")
_WARNING = "bold $text-warning"


class ContextParts(NamedTuple):
    """Tokens of each part, in the bar's order; together they are the whole context."""

    system: int
    old: int
    new: int
    free: int

    @property
    def total(self) -> int:
        """Tokens that the context holds."""
        return sum(self)

    @property
    def used_share(self) -> float:
        """Share that is taken, 0 to 1."""
        if self.total:
            return 1 - self.free / self.total
        return 0.0

    @property
    def is_nearly_full(self) -> bool:
        """Whether a reply may soon have no room."""
        return self.used_share >= NEARLY_FULL


def context_parts(status: EngineStatus) -> ContextParts:
    """Divide the context as the engine's thread has counted it."""
    used = min(status.context_used, status.n_ctx)
    starts = status.turn_starts or (used,)
    system = min(starts[0], used)
    new_from = min(starts[-1], used)
    return ContextParts(system, new_from - system, used - new_from, status.n_ctx - used)


def context_bar(
    parts: ContextParts, n_cells: int, glyphs: str = BLOCKS, with_names: bool = False
) -> Content:
    """Write bar, share and warning: "ctx ██▓▓▒░░░ 31 %"; each part has its colour, and all of it
    where it warns."""
    cells = [glyph * n for glyph, n in zip(glyphs, cells_of(parts, n_cells), strict=True)]
    share = f" {100 * parts.used_share:.0f} %"
    if parts.total and not parts.free:
        share += " full: the oldest turns go next"
    elif parts.is_nearly_full:
        share += f" nearly full: {figures.count(parts.free)} left"
    names = [
        f" {glyph} {name}" if with_names else "" for glyph, name in zip(glyphs, NAMES, strict=True)
    ]
    bar = Content.assemble(
        "ctx ", *zip(cells, _STYLES, strict=True), share, *zip(names, _STYLES, strict=True)
    )
    if parts.is_nearly_full:
        return Content.styled(bar.plain, _WARNING)
    return bar


NARROW_COLUMNS = 60
WIDE_COLUMNS = 100
LOW_ROWS = 12
"""Below this height the prompt has no edge."""
_BAR_CELLS = 8
_WIDE_BAR_CELLS = 14
_CURVE_S = 8
"""Seconds of the curve, one in each cell."""
_CURVE_ROOM = 4 / 3
"""How much higher the curve's scale is than its highest second: an even speed is no full block."""
_SEPARATOR = " │ "


@record
class Figure:
    """One figure; where room is short, those of the highest ``rank`` go first."""

    text: str | Content
    rank: int
    before: str = _SEPARATOR
    """Sets it off from the figure before it."""


def activity_text(status: EngineStatus, now_s: float, is_short: bool = False) -> str:
    """Say what the engine is doing, with progress and time left where they are known; in fewer
    words if need be."""
    if status.activity is Activity.COMPILING:
        waited_s = max(0.0, now_s - status.since_s)
        step = f"{status.done}/{status.total} {status.step}"
        return f"Getting ready for this CPU (once): {step} · {figures.seconds(waited_s)}"
    if status.activity is Activity.LOADING:
        if status.total:
            return f"loading {100 * status.done // status.total} %"
        return "loading"
    if status.activity is Activity.READING and status.total:
        text = f"reading {figures.count(status.done)} of {figures.count(status.total)} tokens"
        if is_short:
            text = f"{figures.count(status.done)}/{figures.count(status.total)} tokens"
        if status.rate_tps > 0:
            text += f" · {figures.rate(status.rate_tps)} tok/s"
        left_s = status.seconds_left(now_s)
        if left_s is not None and status.done < status.total:
            text += f" · {'' if is_short else 'about '}{figures.whole_seconds(left_s)} left"
        return text
    return Activity(status.activity).value


def activity_word(status: EngineStatus) -> str:
    """Say the same in the shortest way, for a line that has more to show."""
    if status.activity is Activity.COMPILING:
        return f"compiling {status.done}/{status.total}"
    if status.activity in (Activity.LOADING, Activity.READING) and status.total:
        return f"{Activity(status.activity).value} {100 * status.done // status.total} %"
    return Activity(status.activity).value


def disk_text(status: EngineStatus, bytes_per_s: float) -> str:
    """Say what of the model comes from disk, for each token where there are any; "" where it is in
    memory."""
    if bytes_per_s < LEAST_DISK_BYTES_PER_S or status.activity not in (
        Activity.READING,
        Activity.WRITING,
    ):
        return ""
    if status.activity is Activity.WRITING and status.rate_tps > 0:
        return f"disk {figures.size(bytes_per_s / status.rate_tps)}/token"
    return f"disk {figures.size(bytes_per_s)}/s"


def context_segment(status: EngineStatus, columns: int, glyphs: str = BLOCKS) -> Content:
    """Say how full the context is: in numbers on a narrow screen, else as a bar."""
    parts = context_parts(status)
    is_wide = columns >= WIDE_COLUMNS
    if columns < NARROW_COLUMNS:
        text = f"ctx {figures.count(status.context_used)}/{figures.count(status.n_ctx)}"
        if parts.is_nearly_full:
            return Content.styled(f"{text}!", _WARNING)
        return Content(text)
    return context_bar(
        parts, _WIDE_BAR_CELLS if is_wide else _BAR_CELLS, glyphs, with_names=is_wide
    )


def curve_text(rates_tps: Sequence[float], alphabet: alphabets.Glyphs) -> str:
    """Draw the speed of the newest seconds from zero on, a cell each, at the right end; "" before
    there is one."""
    shown = rates_tps[-_CURVE_S:]
    top = _CURVE_ROOM * max(shown, default=0.0)
    if top > 0:
        return f"{''.join(level(tps / top, alphabet) for tps in shown):>{_CURVE_S}}"
    return ""


def status_segments(
    status: EngineStatus,
    rss_bytes: int,
    columns: int,
    glyphs: str = BLOCKS,
    curve: str = "",
    disk_bytes_per_s: float = 0.0,
) -> list[Figure]:
    """Return the line's figures from left to right."""
    has_rate = status.activity in (Activity.WRITING, Activity.READY)
    rate = f"{figures.rate(status.rate_tps) if status.rate_tps > 0 else '-':>4} tok/s"
    is_wide = columns >= NARROW_COLUMNS
    segments = (
        Figure(rate, 1) if has_rate else Figure(activity_word(status), 0),
        Figure(Content.styled(curve, "$writing") if is_wide else "", 6, before=" "),
        Figure(figures.counted(status.threads, "thread") if status.threads and is_wide else "", 4),
        Figure(disk_text(status, disk_bytes_per_s), 1),
        Figure(f"mem {figures.size(rss_bytes)}" if rss_bytes and is_wide else "", 3),
        Figure(context_segment(status, columns, glyphs) if status.n_ctx else "", 2),
        Figure(activity_word(status) if has_rate and is_wide else "", 5),
    )
    return [segment for segment in segments if segment.text]


def fit(segments: Iterable[Figure], columns: int) -> Content:
    """Join the segments, leaving out the least important until the rest has room."""
    kept = list(segments)
    while len(line := _joined(kept)) >= columns and len(kept) > 1:
        kept.remove(max(kept, key=lambda segment: segment.rank))
    return line


def _joined(segments: Sequence[Figure]) -> Content:
    rest = (part for segment in segments[1:] for part in (segment.before, segment.text))
    return Content.assemble(" ", segments[0].text, *rest)


class StatusLine(Static):
    """Shows the engine's status and the process's memory; the hint where the prompt has no edge
    that gives it."""

    def __init__(self, id: str | None = None, hint: str = "") -> None:
        super().__init__(id=id, markup=False)
        self._hint = hint
        self._glyphs = alphabets.choose_glyphs()
        self._rates = RateHistory()
        self._shown: tuple[EngineStatus, int, str, float] = (EngineStatus(), 0, "", 0.0)
        self.line = ""

    def show(
        self,
        status: EngineStatus,
        rss_bytes: int,
        download: str = "",
        disk_bytes_per_s: float = 0.0,
    ) -> None:
        """Show these figures, and how far a download is; nothing is drawn when the line stays the
        same."""
        self._shown = (status, rss_bytes, download, disk_bytes_per_s)
        columns = self.size.width or 80
        if self._glyphs is alphabets.ASCII:
            glyphs = ASCII
        else:
            glyphs = BLOCKS
        segments = status_segments(
            status, rss_bytes, columns, glyphs, self._curve(status), disk_bytes_per_s
        )
        if download:
            segments.append(Figure(download, 3))
        if self._hint and self.app.size.height < LOW_ROWS:
            segments.append(Figure(self._hint, 6))
        content = fit(segments, columns)
        if content.plain != self.line:
            self.line = content.plain
            # one line high whatever it says: nothing else has to move
            self.update(content, layout=False)

    def _curve(self, status: EngineStatus) -> str:
        """Draw the running reply's speed; its last second, which is not over, would change with
        every look."""
        if status.meter is None or status.activity is not Activity.WRITING:
            return ""
        self._rates.follow(status.meter.token_times_s)
        return curve_text(self._rates.rates_tps()[:-1], self._glyphs)

    def on_resize(self) -> None:
        """Choose the figures again that have room."""
        self.show(*self._shown)


_MOST_BAR_CELLS = 14
_LEAST_BAR_CELLS = 5
_WAITING = (Activity.LOADING, Activity.COMPILING, Activity.READING, Activity.CALLING)


def activity_line(status: EngineStatus, now_s: float, columns: int) -> str:
    """Return what the user waits for; "" when there is nothing to wait for."""
    if status.activity not in _WAITING:
        return ""
    text = activity_text(status, now_s)
    if len(text) > columns - 2:
        text = activity_text(status, now_s, is_short=True)
    if status.activity in (Activity.LOADING, Activity.CALLING) and status.step:
        text = f"{text} · {status.step}"
    cells = min(_MOST_BAR_CELLS, columns - len(text) - 4)
    if status.total and cells >= _LEAST_BAR_CELLS:
        text += "  " + figures.bar(status.done, status.total, cells)
    return text


class ActivityLine(Static):
    """Shows progress of loading, compiling and reading."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self.display = False
        self.line = ""

    def show(self, status: EngineStatus, now_s: float) -> None:
        """Show what is waited for, or go away."""
        line = activity_line(status, now_s, self.app.size.width)
        if line != self.line:
            self.line = line
            self.display = bool(line)
            self.update(" " + line, layout=False)

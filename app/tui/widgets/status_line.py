"""Status line at the bottom of the chat, and the line above the prompt that shows progress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from textual.content import Content
from textual.widgets import Static

from app.backend.picture_costs import EncodingProgress
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
ASCII_BLOCKS = "#=+."
PART_NAMES = ("system", "old", "new", "free")
_STYLES = ("$primary", "$secondary", "$success", "$text-muted")
_WARNING = "bold $text-warning"


class ContextParts(NamedTuple):
    """Tokens of each part of the context, in the order of the bar."""

    system: int
    old: int
    new: int
    free: int

    @property
    def total(self) -> int:
        """Size of the context in tokens."""
        return sum(self)

    @property
    def used_share(self) -> float:
        """Used share of the context, 0 to 1."""
        if self.total:
            return 1 - self.free / self.total
        return 0.0

    @property
    def is_nearly_full(self) -> bool:
        """Whether a reply may soon run out of context."""
        return self.used_share >= NEARLY_FULL

    def cells(self, n_cells: int) -> list[int]:
        """Divide the cells of a bar by the parts.

        The used cells show the used share, and at least one cell is used if a token is.
        """
        used = self.total - self.free
        if not used or not self.free:
            return cells_of(self, n_cells)
        n_used = min(max(1, round(n_cells * self.used_share)), n_cells - 1)
        return [*cells_of((self.system, self.old, self.new), n_used), n_cells - n_used]


def context_parts(status: EngineStatus) -> ContextParts:
    """Return the tokens of each part of the context."""
    used = min(status.context_used, status.n_ctx)
    starts = status.turn_starts or (used,)
    system = min(starts[0], used)
    new_from = min(starts[-1], used)
    return ContextParts(system, new_from - system, used - new_from, status.n_ctx - used)


def context_bar(
    context: ContextParts, n_cells: int, glyphs: str = BLOCKS, with_names: bool = False
) -> Content:
    """Return a bar with the used share: "ctx ██▓▓▒░░░ 31 %".

    Each part of the context has its own colour. A nearly full context adds a warning, in the colour
    of warnings.
    """
    cells = [glyph * n for glyph, n in zip(glyphs, context.cells(n_cells), strict=True)]
    share = f" {100 * context.used_share:.0f} %"
    if context.total and not context.free:
        share += " full: the oldest messages go next"
    elif context.is_nearly_full:
        share += f" nearly full: {figures.count(context.free)} left"
    bar = Content.assemble("ctx ", *zip(cells, _STYLES, strict=True), share)
    if with_names:
        for glyph, name, style in zip(glyphs, PART_NAMES, _STYLES, strict=True):
            bar = bar.append(Content.styled(f" {glyph} {name}", style))
    if context.is_nearly_full:
        return Content.styled(bar.plain, _WARNING)
    return bar


NARROW_COLUMNS = 60
WIDE_COLUMNS = 100
LOW_ROWS = 12
"""Height of the screen below which the prompt has no border."""
_BAR_CELLS = 8
_WIDE_BAR_CELLS = 14
_CURVE_S = 8
"""Seconds of the curve, one per cell."""
_CURVE_ROOM = 4 / 3
"""Ratio of the curve's scale to its highest second, so that an even speed is not a full block."""
_SEPARATOR = " │ "


@record
class StatusSegment:
    """Segment of the status line; a line without room drops the highest ``drop_order`` first."""

    text: str | Content
    drop_order: int
    separator: str = _SEPARATOR
    """Text between this segment and the previous one."""


def activity_text(status: EngineStatus, now_s: float, is_short: bool = False) -> str:
    """Return the engine's activity with progress and time left, as far as they are known."""
    if status.activity is Activity.COMPILING:
        elapsed = figures.seconds(max(0.0, now_s - status.since_s))
        return f"First-time setup for this CPU: {status.done} of {status.total} · {elapsed}"
    if status.activity is Activity.LOADING:
        if status.total:
            return f"loading {100 * status.done // status.total} %"
        return "loading"
    if status.encoding is not None:
        return _encoding_text(status.encoding, now_s, is_short)
    if status.activity is Activity.READING and status.total:
        return _reading_text(status, now_s, is_short)
    return Activity(status.activity).value


def _reading_text(status: EngineStatus, now_s: float, is_short: bool) -> str:
    if is_short:
        text = f"{figures.count(status.done)}/{figures.count(status.total)} tokens"
        about = ""
    else:
        text = f"reading {figures.count(status.done)} of {figures.count(status.total)} tokens"
        about = "about "
    if status.rate_tps > 0:
        text += f" · {figures.rate(status.rate_tps)} tok/s"
    left_s = status.seconds_left(now_s)
    if left_s is not None and status.done < status.total:
        text += f" · {about}{figures.whole_seconds(left_s)} left"
    return text


def _encoding_text(progress: EncodingProgress, now_s: float, is_short: bool) -> str:
    text = f"{progress.name} {100 * progress.share:.0f} %"
    left_s = figures.whole_seconds(progress.seconds_left(now_s))
    if is_short:
        return f"{text} · {left_s} left"
    return f"looking at {text} · about {left_s} left"


def activity_word(status: EngineStatus) -> str:
    """Return the engine's activity in a word, with progress."""
    if status.activity is Activity.COMPILING:
        return f"setup {status.done}/{status.total}"
    if status.activity in (Activity.LOADING, Activity.READING) and status.total:
        return f"{Activity(status.activity).value} {100 * status.done // status.total} %"
    return Activity(status.activity).value


def disk_text(status: EngineStatus, bytes_per_s: float) -> str:
    """Return how much is read from disk, per token or per second; empty if nothing is."""
    if bytes_per_s < LEAST_DISK_BYTES_PER_S or status.activity not in (
        Activity.READING,
        Activity.WRITING,
    ):
        return ""
    if status.activity is Activity.WRITING and status.rate_tps > 0:
        return f"disk {figures.byte_size(bytes_per_s / status.rate_tps)}/token"
    return f"disk {figures.byte_size(bytes_per_s)}/s"


def context_segment(status: EngineStatus, columns: int, glyphs: str = BLOCKS) -> Content:
    """Return how full the context is: as numbers on a narrow screen, else as a bar."""
    context = context_parts(status)
    is_wide = columns >= WIDE_COLUMNS
    if columns < NARROW_COLUMNS:
        text = f"ctx {figures.count(status.context_used)}/{figures.count(status.n_ctx)}"
        if context.is_nearly_full:
            return Content.styled(f"{text}!", _WARNING)
        return Content(text)
    if is_wide:
        return context_bar(context, _WIDE_BAR_CELLS, glyphs, with_names=True)
    return context_bar(context, _BAR_CELLS, glyphs)


def curve_text(rates_tps: Sequence[float], alphabet: alphabets.Glyphs) -> str:
    """Return the speed of the last seconds as a curve above zero, right-aligned; empty if zero."""
    newest = rates_tps[-_CURVE_S:]
    top = _CURVE_ROOM * max(newest, default=0.0)
    if top > 0:
        return f"{''.join(level(tps / top, alphabet) for tps in newest):>{_CURVE_S}}"
    return ""


def status_segments(
    status: EngineStatus,
    rss_bytes: int,
    columns: int,
    glyphs: str = BLOCKS,
    curve: str = "",
    disk_bytes_per_s: float = 0.0,
) -> list[StatusSegment]:
    """Return the segments of the line from left to right."""
    has_rate = status.activity in (Activity.WRITING, Activity.READY)
    is_wide = columns >= NARROW_COLUMNS
    segments = []
    if has_rate:
        rate = figures.rate(status.rate_tps) if status.rate_tps > 0 else "-"
        segments.append(StatusSegment(f"{rate:>4} tok/s", 1))
    else:
        segments.append(StatusSegment(activity_word(status), 0))
    if is_wide and curve:
        segments.append(StatusSegment(Content.styled(curve, "$writing"), 6, separator=" "))
    if is_wide and status.threads:
        segments.append(StatusSegment(figures.counted(status.threads, "thread"), 4))
    if disk := disk_text(status, disk_bytes_per_s):
        segments.append(StatusSegment(disk, 1))
    if is_wide and rss_bytes:
        segments.append(StatusSegment(f"mem {figures.size(rss_bytes)}", 3))
    if status.n_ctx:
        segments.append(StatusSegment(context_segment(status, columns, glyphs), 2))
    if is_wide and has_rate:
        segments.append(StatusSegment(activity_word(status), 5))
    return segments


def fit(candidates: Iterable[StatusSegment], columns: int) -> Content:
    """Join the segments, dropping the least important ones until the line fits."""
    segments = list(candidates)
    while len(content := _joined(segments)) >= columns and len(segments) > 1:
        segments.remove(max(segments, key=lambda segment: segment.drop_order))
    return content


def _joined(segments: Sequence[StatusSegment]) -> Content:
    texts = (text for segment in segments[1:] for text in (segment.separator, segment.text))
    return Content.assemble(" ", segments[0].text, *texts)


class StatusLine(Static):
    """Line with the engine's status and the memory of the process.

    On low screens it also shows ``hint``, which is otherwise in the prompt's border.
    """

    def __init__(self, id: str | None = None, hint: str = "") -> None:
        super().__init__(id=id, markup=False)
        self._hint = hint
        self._glyphs = alphabets.choose_glyphs()
        self._rates = RateHistory()
        self._latest_figures: tuple[EngineStatus, int, str, float] = (EngineStatus(), 0, "", 0.0)
        self.line = ""

    def show(
        self,
        status: EngineStatus,
        rss_bytes: int,
        download: str = "",
        disk_bytes_per_s: float = 0.0,
    ) -> None:
        """Show these figures and the progress of a download; redraw only if the line changes."""
        self._latest_figures = (status, rss_bytes, download, disk_bytes_per_s)
        columns = self.size.width or 80
        if self._glyphs is alphabets.ASCII:
            glyphs = ASCII_BLOCKS
        else:
            glyphs = BLOCKS
        segments = status_segments(
            status, rss_bytes, columns, glyphs, self._curve(status), disk_bytes_per_s
        )
        if download:
            segments.append(StatusSegment(download, 3))
        if self._hint and self.app.size.height < LOW_ROWS:
            segments.append(StatusSegment(self._hint, 6))
        content = fit(segments, columns)
        if content.plain != self.line:
            self.line = content.plain
            # The line always has one row, so the layout cannot change.
            self.update(content, layout=False)

    def _curve(self, status: EngineStatus) -> str:
        """Return the curve of the running reply's speed, without the present, incomplete second."""
        if status.meter is None or status.activity is not Activity.WRITING:
            return ""
        self._rates.follow(status.meter.token_times_s)
        return curve_text(self._rates.rates_tps()[:-1], self._glyphs)

    def on_resize(self) -> None:
        """Choose the segments that fit the new width."""
        self.show(*self._latest_figures)


_MOST_BAR_CELLS = 14
_LEAST_BAR_CELLS = 5
_WAITING = (Activity.LOADING, Activity.COMPILING, Activity.READING, Activity.CALLING)


def activity_line(status: EngineStatus, now_s: float, columns: int) -> str:
    """Return the progress of an activity that the user waits for; empty if there is none."""
    encoding = status.encoding
    if status.activity not in _WAITING and encoding is None:
        return ""
    text = activity_text(status, now_s)
    if len(text) > columns - 2:
        text = activity_text(status, now_s, is_short=True)
    if status.activity in (Activity.LOADING, Activity.CALLING) and status.step:
        text = f"{text} · {status.step}"
    cells = min(_MOST_BAR_CELLS, columns - len(text) - 4)
    if encoding is not None and cells >= _LEAST_BAR_CELLS:
        text += "  " + figures.bar(round(100 * encoding.share), 100, cells)
    elif status.total and cells >= _LEAST_BAR_CELLS:
        text += "  " + figures.bar(status.done, status.total, cells)
    return text


class ActivityLine(Static):
    """Line with the progress of loading, compiling and reading."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self.display = False
        self.line = ""

    def show(self, status: EngineStatus, now_s: float) -> None:
        """Show the progress, or hide the line if there is nothing to wait for."""
        line = activity_line(status, now_s, self.app.size.width)
        if line != self.line:
            self.line = line
            self.display = bool(line)
            self.update(" " + line, layout=False)

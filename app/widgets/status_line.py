"""The one line at the bottom: speed, threads, memory, context, and what the engine is doing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from textual.content import Content
from textual.widgets import Static

from app import figures
from app.engine_status import Activity, EngineStatus

NARROW_COLUMNS = 60
_SEPARATOR = " │ "
_HINTS = "F1 help"


@dataclass(frozen=True)
class Segment:
    """One figure; where room is short, those of the highest ``rank`` go first."""

    text: str
    rank: int


def activity_text(status: EngineStatus) -> str:
    """Say what the engine is doing, with progress and time left where they are known."""
    if status.activity is Activity.COMPILING:
        return f"compiling {status.done}/{status.total} {status.step}".rstrip()
    if status.activity is Activity.LOADING:
        return f"loading {100 * status.done // status.total} %" if status.total else "loading"
    if status.activity is Activity.READING and status.total:
        text = f"reading {figures.count(status.done)} of {figures.count(status.total)} tokens"
        if status.rate_tps > 0:
            text += f" · {figures.rate(status.rate_tps)} tok/s"
        if status.seconds_left is not None and status.done < status.total:
            text += f" · about {figures.whole_seconds(status.seconds_left)} left"
        return text
    return Activity(status.activity).value


def activity_word(status: EngineStatus) -> str:
    """Say the same in the shortest way, for a line that has more to show."""
    percent = f" {100 * status.done // status.total} %" if status.total else ""
    if status.activity is Activity.COMPILING:
        return f"compiling {status.done}/{status.total}"
    if status.activity in (Activity.LOADING, Activity.READING):
        return f"{Activity(status.activity).value}{percent}"
    return Activity(status.activity).value


def status_segments(status: EngineStatus, rss_bytes: int, is_narrow: bool) -> list[Segment]:
    """Return the line's figures from left to right."""
    has_rate = status.activity in (Activity.WRITING, Activity.READY)
    rate = f"{figures.rate(status.rate_tps) if status.rate_tps > 0 else '-':>4} tok/s"
    context = f"ctx {figures.count(status.context_used)}/{figures.count(status.n_ctx)}"
    segments = [Segment(rate, 1)] if has_rate else [Segment(activity_word(status), 0)]
    if status.n_ctx:
        segments.append(Segment(context, 2))
    if is_narrow:
        return segments
    if status.threads:
        segments.insert(1, Segment(f"{status.threads} thread{'s' if status.threads > 1 else ''}", 4))
    if rss_bytes:
        segments.insert(-1 if status.n_ctx else len(segments), Segment(f"rss {figures.size(rss_bytes)}", 3))
    if has_rate:
        segments.append(Segment(activity_word(status), 5))
    segments.append(Segment(_HINTS, 6))
    return segments


def fit(segments: Iterable[Segment], columns: int) -> str:
    """Join the segments, leaving out the least important until the rest has room."""
    kept = list(segments)
    while len(kept) > 1 and len(_SEPARATOR.join(s.text for s in kept)) + 2 > columns:
        kept.remove(max(kept, key=lambda segment: segment.rank))
    return " " + _SEPARATOR.join(segment.text for segment in kept)


class StatusLine(Static):
    """Shows the engine's status and the memory of the process."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._shown: tuple[EngineStatus, int] = (EngineStatus(), 0)
        self.line = ""
        """The text as it stands."""

    def show(self, status: EngineStatus, rss_bytes: int) -> None:
        """Show these figures; nothing is drawn when the line stays the same."""
        self._shown = (status, rss_bytes)
        columns = self.size.width or 80
        line = fit(status_segments(status, rss_bytes, columns < NARROW_COLUMNS), columns)
        if line != self.line:
            self.line = line
            self.update(Content(line))

    def on_resize(self) -> None:
        """Choose the figures again that have room."""
        self.show(*self._shown)

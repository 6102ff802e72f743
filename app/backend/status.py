"""Activity of the engine's thread: one small immutable record, replaced as a whole; no one waits
for it."""

from __future__ import annotations

from enum import Enum

from app.backend.reply import ReplyMeter
from app.text.record import record

RATE_WINDOW_S = 10.0
LATE_SHARE = 0.25
"""Of the time that was estimated at the last report: less is not promised before the next one."""


class Activity(str, Enum):
    """The states of the engine's thread."""

    NO_MODEL = "no model"
    LOADING = "loading"
    COMPILING = "compiling"
    READING = "reading"
    """The prompt is being processed."""
    READING_AHEAD = "reading ahead"
    """The draft in the prompt is processed before it is sent; ends as soon as anything is asked."""
    WRITING = "writing"
    CALLING = "calling tools"
    """A server of tools starts, or a tool runs."""
    TUNING = "tuning threads"
    """Thread counts are being measured."""
    READY = "ready"


@record
class EngineStatus:
    """A snapshot of the engine's thread."""

    activity: Activity = Activity.NO_MODEL
    step: str = ""
    """Name of the file or kernel being loaded or compiled; clean, one line."""
    done: int = 0
    total: int = 0
    """Progress: kernels, bytes or prompt tokens, as ``activity`` says; total 0 means unknown."""
    since_s: float = 0.0
    """When the activity began, on the bridge's clock."""
    meter: ReplyMeter | None = None
    """Of the running reply, growing while it is read; after it, that of the last one."""
    usual_prefill_tps: float = 0.0
    """Prompt tokens read per second in earlier turns, for as long as this one has no rate of its
    own; 0 for unknown."""
    threads: int = 0
    turn_starts: tuple[int, ...] = ()
    """Where in the context each turn begins, oldest first; the system prompt is before the
    first."""
    server: str = ""
    """Who computes in place of this program; "" for no one."""
    context_used: int = 0
    n_ctx: int = 0

    @property
    def is_busy(self) -> bool:
        """Whether the thread would not start a new command at once."""
        return self.activity not in (Activity.NO_MODEL, Activity.READY, Activity.READING_AHEAD)

    @property
    def rate_tps(self) -> float:
        """Tokens per second: of the prompt, of the last ten seconds, or of the finished reply; 0
        for unknown."""
        if self.meter is None:
            return 0.0
        if self.activity is Activity.READING:
            return self.meter.prefill_tps or self.usual_prefill_tps
        if self.activity is Activity.WRITING:
            return self.meter.window_tps(RATE_WINDOW_S)
        return self.meter.decode_tps

    def seconds_left(self, now_s: float) -> float | None:
        """Estimated time until the prompt is read; None while there is nothing to base it on.

        Counts down between two reports of progress, which may be many seconds apart. Where a report
        is late, the estimate was too low, and the last of it stays.
        """
        if self.activity is not Activity.READING or self.rate_tps <= 0 or self.meter is None:
            return None
        since_report_s = now_s - self.since_s - self.meter.prefill_s
        left_s = (self.total - self.done) / self.rate_tps
        return max(LATE_SHARE * left_s, left_s - since_report_s)

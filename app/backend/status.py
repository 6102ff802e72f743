"""Activity of the engine thread."""

from __future__ import annotations

from enum import Enum

from app.backend.picture_costs import EncodingProgress
from app.backend.reply import ReplyMeter
from app.text.record import record

RATE_WINDOW_S = 10.0
LATE_SHARE = 0.25
"""Lowest share of an estimated time to show until the next report of progress."""


class Activity(str, Enum):
    """Activity of the engine thread."""

    NO_MODEL = "no model"
    LOADING = "loading"
    COMPILING = "compiling"
    READING = "reading"
    """The prompt is prefilled."""
    READING_AHEAD = "reading ahead"
    """A draft is prefilled before it is sent; any request ends this."""
    WRITING = "writing"
    CALLING = "calling tools"
    """A server of tools starts, or a tool runs."""
    TUNING = "tuning threads"
    """Thread counts are being measured."""
    READY = "ready"


@record
class EngineStatus:
    """Activity of the engine thread, its progress, and the use of the context."""

    activity: Activity = Activity.NO_MODEL
    step: str = ""
    """File or kernel that is loaded or compiled, or tool that runs: clean, one line."""
    done: int = 0
    total: int = 0
    """Progress in kernels, bytes or prompt tokens; a total of 0 is unknown."""
    since_s: float = 0.0
    """Time at which the activity began, on the clock of the engine thread."""
    meter: ReplyMeter | None = None
    """Measurements of the running reply, or of the last one; None if there is none."""
    encoding: EncodingProgress | None = None
    """Picture that the encoder reads; None if it reads none."""
    usual_prefill_tps: float = 0.0
    """Prompt tokens per second in earlier turns; 0 if unknown."""
    threads: int = 0
    turn_starts: tuple[int, ...] = ()
    """Position of each turn in the context, oldest first; the system prompt is before the first."""
    server: str = ""
    """Host of the server that computes; empty if this program does."""
    context_used: int = 0
    n_ctx: int = 0

    @property
    def is_busy(self) -> bool:
        """Whether a new request would have to wait."""
        return self.activity not in (Activity.NO_MODEL, Activity.READY, Activity.READING_AHEAD)

    @property
    def rate_tps(self) -> float:
        """Tokens per second of the prompt, of the last ten seconds, or of the finished reply; 0 if
        unknown."""
        if self.meter is None:
            return 0.0
        if self.activity is Activity.READING:
            return self.meter.prefill_tps or self.usual_prefill_tps
        if self.activity is Activity.WRITING:
            return self.meter.window_tps(RATE_WINDOW_S)
        return self.meter.decode_tps

    def seconds_left(self, now_s: float) -> float | None:
        """Return the estimated seconds until the prompt is read; None if they are unknown.

        The estimate counts down between two reports of progress, which may be many seconds apart.
        If a report is late, the estimate was too low and stops at ``LATE_SHARE`` of it.
        """
        if self.activity is not Activity.READING or self.rate_tps <= 0 or self.meter is None:
            return None
        since_report_s = now_s - self.since_s - self.meter.prefill_s
        left_s = (self.total - self.done) / self.rate_tps
        return max(LATE_SHARE * left_s, left_s - since_report_s)

"""Passes the engine's events and status to the screen, at the pace of the interface.

Ten times a second is enough; less often while somebody types, under another screen, or where drawing is dear.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count

from app.chat.status import Activity, EngineStatus
from app.machine.page_faults import DiskRate
from app.tui.messages import EngineReported
from app.tui.screens.chat_parts import ChatHelper, ChatParts
from app.tui.speed.watch import TypingRhythm
from app.tui.widgets.status_line import ActivityLine, StatusLine

DRAIN_PERIOD_S = 0.1
STATUS_EVERY = 2
"""While a reply is written the status line changes with every second drain, which is as often as anyone reads it."""
REST_EVERY = 10
"""Looks, of which one is a whole one, while nothing runs and nothing has come."""
UNSEEN_PERIOD_S = 0.5
"""How often what a reply brings is taken in while another screen is shown."""
MEMORY_PERIOD_S = 1.0


class EngineFlow(ChatHelper):
    """Hands events to the screen, and shows the status, with how far a download is, at an affordable pace."""

    def __init__(self, parts: ChatParts) -> None:
        super().__init__(parts)
        self._clock, self._pace = self._bridge.now_s, self._around.watch.pace
        self._numbers, self._rhythm = count(1), TypingRhythm()
        self._rss_bytes = self._n_drains = 0
        self._disk_rate, self._disk_bytes_per_s = DiskRate(), 0.0
        self._shown = EngineStatus(), 0, ""
        self._n_rests = 0
        self._tells_below = False
        self.screens_hint = ""
        """The keys of other screens that the prompt's edge has room for."""

    def begin(self) -> None:
        """Look from now on."""
        self._show_status()
        self._screen.set_interval(DRAIN_PERIOD_S, self.drain)
        self._screen.set_interval(MEMORY_PERIOD_S, self.measure_memory)

    def note_typed(self, text: str) -> None:
        """The text in the prompt has changed: while somebody types, a reply is drawn right after a painted key."""
        self._rhythm.note_text(text, self._clock())
        if self._is_writing_on:
            self._screen.call_after_refresh(self._drain_behind_key)

    def measure_memory(self) -> None:
        """Look what the process takes of memory, and of the disk."""
        import psutil  # not with the module: the first frame would wait for it

        with suppress(psutil.Error, OSError):  # without /proc no one tells
            self._rss_bytes = psutil.Process().memory_info().rss
        self._disk_bytes_per_s = self._disk_rate.since_last(self._clock()) or 0.0

    def drain(self) -> None:
        """Show what came, unless no one would miss it by now."""
        self._n_rests = self._n_rests + 1 if self._is_at_rest else 0
        if self._n_rests % REST_EVERY:
            return
        self.show_edge()  # compares words: it need not wait for a frame
        is_writing_on = self._is_writing_on
        if not (is_writing_on and self._may_wait()):
            self._show_what_came(is_writing_on)

    @property
    def _is_at_rest(self) -> bool:
        if self._turns.is_answering or self._turns.is_calling or self._tells_below or self._bridge.has_news():
            return False
        status, *others = self._shown
        is_still = status.activity is Activity.READY and status is self._bridge.status
        return is_still and others == [self._rss_bytes, self._around.downloads.word()]

    def _may_wait(self) -> bool:
        """Whether no one misses what the reply has brought by now."""
        now_s = self._clock()
        if not self._screen.is_current:
            return not self._rhythm.is_due(now_s, UNSEEN_PERIOD_S)
        return self._pace.leaves_out(next(self._numbers)) or self._rhythm.is_typing(now_s)

    def _drain_behind_key(self) -> None:
        now_s = self._clock()
        is_due = self._rhythm.is_typing(now_s) and self._rhythm.is_due(now_s, DRAIN_PERIOD_S * self._pace.divisor)
        if self._is_writing_on and is_due:
            self._show_what_came(True)

    @property
    def _is_writing_on(self) -> bool:
        return self._bridge.status.activity is Activity.WRITING is self._shown[0].activity

    def _show_what_came(self, is_writing_on: bool) -> None:
        for event in self._bridge.drain():
            self._screen.post_message(EngineReported(event))
        self._rhythm.note_drawn(self._clock())
        self._n_drains += 1
        if not is_writing_on or self._n_drains % STATUS_EVERY == 0:
            self._show_status()

    def _show_status(self) -> None:
        self._shown = self._bridge.status, self._rss_bytes, self._around.downloads.word()
        self._screen.query_one(ActivityLine).show(self._shown[0], self._clock())
        self._screen.query_one(StatusLine).show(*self._shown, self._disk_bytes_per_s)

    def show_edge(self) -> None:
        """Name at the prompt's edge what stops the running reply, and what leads to text out of sight; else screens."""
        runs = self._turns.is_answering or self._turns.is_calling
        stop = self._keymap.hint("chat.stop", "stops the reply") if runs else ""
        below = ""
        # While nothing is written, a height changes by a layout only.
        self._tells_below = self._transcript.has_unseen and (self._turns.is_answering or self._tells_below)
        if self._tells_below:
            key = "End" if not self._prompt.text else self._keymap.first_key("prompt.to_end")
            below = f"new text below ({key})" if key else "new text below"
        self._prompt.show_keys("" if self._turns.is_answering else self.screens_hint, stop, below)

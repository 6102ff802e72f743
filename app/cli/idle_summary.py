"""Summaries that the model writes in line mode when the context fills, while the user pauses."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from app.cli.interrupts import interrupt_stops
from app.cli.output import ProgressLine
from app.program.background import in_background
from app.program.refusals import say
from app.session.compaction import ON
from app.session.events import Event
from app.session.headless import HeadlessChat


class IdleSummary:
    """Summary of the oldest turns of a chat in line mode, as the setting ``compact`` wants it.

    A user at a terminal is not kept waiting: the next line ends the summary. Lines from a pipe come
    without a pause, so a message waits for it.

    Args:
        compact: value of the setting ``compact``.
        is_typed: whether a user types the lines at a terminal.
    """

    def __init__(
        self, headless: HeadlessChat, progress: ProgressLine, compact: str, is_typed: bool
    ) -> None:
        self._headless = headless
        self._progress = progress
        self._compact = compact
        self._is_typed = is_typed
        self._events: Future[Sequence[Event]] | None = None
        """Events of the summary; None if none is being written."""

    def begin(self) -> None:
        """Let the model summarize if the context fills and the user wants that."""
        if self._compact != ON:
            return
        arriving_events = self._headless.compact_if_full()
        if arriving_events is None:
            return
        if self._is_typed:
            say("Summarizing the oldest turns while you pause ... (your next line stops it)")
        # The progress would be drawn over the line that is being typed.
        self._progress.is_hidden = True
        self._events = in_background(lambda: list(arriving_events), "summary")

    def end(self, is_needed: bool) -> Sequence[Event]:
        """Return the events of the summary, which is over then.

        Args:
            is_needed: whether a message follows, which the summary makes room for.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed a second time.
        """
        if self._events is None:
            return ()
        if self._is_typed or not is_needed:
            self._headless.stop()
        elif not self._events.done():
            say("Summarizing the oldest turns ... (ctrl+c stops it)")
        with interrupt_stops(self._headless.stop):
            arrived = self._events.result()
        self._events = None
        self._progress.is_hidden = False
        return arrived

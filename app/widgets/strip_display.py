"""When the strip is shown: toggled by the user, refreshed only while its screen is on top."""

from __future__ import annotations

from textual.screen import Screen
from textual.timer import Timer

from app.glyphs import choose_glyphs
from app.performance.interface_pace import Refreshes
from app.performance.watch import PerformanceWatch
from app.widgets.performance_strip import PerformanceStrip

REFRESH_PERIOD_S = 0.5
FLAT_BELOW_COLUMNS = 76
"""A narrower screen has no column to spare."""


class StripDisplay:
    """Connects the strip of one screen with its figures.

    Args:
        screen: where the strip stands.
        watch: where the figures come from.
    """

    def __init__(self, screen: Screen[None], watch: PerformanceWatch) -> None:
        self._screen, self._watch = screen, watch
        self._refreshes = Refreshes(watch.pace)
        self.widget = PerformanceStrip("strip", choose_glyphs())
        self._timer: Timer | None = None

    def toggle(self) -> None:
        """Show the strip, or hide it and look at nothing any more."""
        if self.widget.display:
            self.widget.display = False
            self._watch.end()
            if self._timer is not None:
                self._timer.stop()
            self._timer = None
            return
        self.widget.display = True
        self._watch.begin()
        self.fit(self._screen.size.width)
        self._timer = self._screen.set_interval(REFRESH_PERIOD_S, self._refresh)
        self._screen.call_after_refresh(self.show)

    def fit(self, columns: int) -> None:
        """Choose the form that the screen has room for."""
        self.widget.lie_flat(columns < FLAT_BELOW_COLUMNS)
        if self.widget.display:
            self._screen.call_after_refresh(self.show)

    def show(self) -> None:
        """Show the figures of this moment."""
        self.widget.show(self._watch.look())

    def _refresh(self) -> None:
        if self._screen.is_current and not self._refreshes.is_left_out():
            self.show()

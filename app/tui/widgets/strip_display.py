"""When the strip is shown: toggled by the user, refreshed only while its screen is on top."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.screen import Screen
from textual.timer import Timer

from app.text.glyphs import choose_glyphs
from app.tui.speed.interface_pace import Refreshes
from app.tui.speed.watch import PerformanceWatch

if TYPE_CHECKING:
    from app.tui.widgets.performance_strip import PerformanceStrip

REFRESH_PERIOD_S = 0.5
FLAT_BELOW_COLUMNS = 76
"""A narrower screen has no column to spare."""


class StripDisplay:
    """Connects the strip, the last widget in ``place`` on a screen, with its figures.

    Until the user asks for it there is no such widget: every first frame would import, style and lay it out.
    """

    def __init__(self, screen: Screen[None], watch: PerformanceWatch, place: str) -> None:
        self._screen, self._watch, self._place = screen, watch, place
        self._refreshes = Refreshes(watch.pace)
        self._widget: PerformanceStrip | None = None
        self._timer: Timer | None = None

    def toggle(self) -> None:
        """Show the strip, or hide it and look at nothing any more."""
        widget = self._widget or self._make()
        widget.display = not widget.display
        if widget.display:
            self._watch.begin()
            self.fit(self._screen.size.width)
            self._timer = self._screen.set_interval(REFRESH_PERIOD_S, self._refresh)
        elif self._timer is not None:
            self._watch.end()
            self._timer.stop()

    def fit(self, columns: int) -> None:
        """Choose the form that the screen has room for."""
        if self._widget is None:
            return
        self._widget.set_class(columns < FLAT_BELOW_COLUMNS, "-flat")  # three lines in place of a column
        if self._widget.display:
            self._screen.call_after_refresh(self.show)

    def show(self) -> None:
        """Show the figures of this moment."""
        if self._widget is not None:
            self._widget.draw(self._watch.look())

    def _make(self) -> PerformanceStrip:
        from app.tui.widgets.performance_strip import PerformanceStrip

        self._widget = PerformanceStrip("strip", choose_glyphs())
        self._screen.query_one(self._place).mount(self._widget)
        return self._widget

    def _refresh(self) -> None:
        if self._screen.is_current and not self._refreshes.is_left_out():
            self.show()

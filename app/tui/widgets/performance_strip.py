"""Strip next to the chat with speed, limit, cores and memory; three lines on narrow screens."""

from __future__ import annotations

from itertools import count

from textual.timer import Timer

from app.text.glyphs import choose_glyphs
from app.tui.drawing.graph import GraphScale
from app.tui.speed.dashboard import flat_lines, strip_lines
from app.tui.speed.watch import PerformanceWatch
from app.tui.widgets.figure_lines import FigureLines

REFRESH_PERIOD_S = 0.5
FLAT_BELOW_COLUMNS = 76
"""Width of the screen below which the strip lies flat at the top."""


class PerformanceStrip(FigureLines):
    """Strip that is hidden until it is toggled and refreshes only while its screen is shown."""

    def __init__(self, watch: PerformanceWatch) -> None:
        super().__init__("strip")
        self.display = False
        self._numbers = count(1)
        self._watch = watch
        self._scale = GraphScale()
        self._timer: Timer | None = None

    def toggle(self) -> None:
        """Show the strip, or hide it and stop watching."""
        self.display = not self.display
        self._watch.register_view(self, self.display)
        if self.display:
            self.fit(self.screen.size.width)
            self._timer = self.set_interval(REFRESH_PERIOD_S, self._refresh)
        elif self._timer is not None:
            self._timer.stop()

    def fit(self, columns: int) -> None:
        """Choose the form for a screen of this width: a column, or three lines."""
        self.set_class(columns < FLAT_BELOW_COLUMNS, "-flat")
        if self.display:
            self.screen.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Draw the present figures."""
        width, height = self.size
        if not width or not self.display:  # not laid out yet
            return
        view = self._watch.read_view()
        glyphs = choose_glyphs()
        if self.has_class("-flat"):
            self.show(flat_lines(view, width, glyphs))
        else:
            self.show(strip_lines(view, width, height, glyphs, self._scale))

    on_resize = draw

    def _refresh(self) -> None:
        if self.screen.is_current and not self._watch.pace.leaves_out(next(self._numbers)):
            self.draw()

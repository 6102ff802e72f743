"""The compact strip beside the chat: speed, limit, cores, memory. Three lines on top where the screen is narrow."""

from __future__ import annotations

from app.text.glyphs import BLOCKS, Glyphs
from app.tui.drawing.graph import Scale
from app.tui.speed.strip_lines import flat_lines, strip_lines
from app.tui.speed.watch import PerformanceView
from app.tui.widgets.figure_lines import FigureLines


class PerformanceStrip(FigureLines):
    """Shows what it is given; whoever shows it decides how often."""

    def __init__(self, id: str | None = None, glyphs: Glyphs = BLOCKS) -> None:
        super().__init__(id=id)
        self.display = False
        self._glyphs, self._scale = glyphs, Scale()
        self._view: PerformanceView | None = None

    def draw(self, view: PerformanceView) -> None:
        """Show these figures."""
        self._view = view
        width, height = self.size
        if not width:  # not laid out yet
            return
        if self.has_class("-flat"):
            self.show(flat_lines(view, width, self._glyphs))
        else:
            self.show(strip_lines(view, width, height, self._glyphs, self._scale))

    def on_resize(self) -> None:
        """Draw the same figures in the new size."""
        if self._view is not None:
            self.draw(self._view)

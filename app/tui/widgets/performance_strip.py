"""The compact strip beside the chat: speed, ceiling, cores, memory. Three lines on top where the screen is narrow."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container

from app.text.glyphs import BLOCKS, Glyphs
from app.tui.speed import strip_lines
from app.tui.speed.graph_lines import Graph
from app.tui.speed.watch import PerformanceView
from app.tui.widgets.figure_lines import FigureLines, RateGraph


class PerformanceStrip(Container):
    """Shows what it is given; whoever shows it decides how often.

    Args:
        glyphs: what to draw with.
    """

    def __init__(self, id: str | None = None, glyphs: Glyphs = BLOCKS) -> None:
        super().__init__(id=id)
        self.display = False
        self._glyphs = glyphs
        self._above, self._below, self._flat = FigureLines("strip-speed"), FigureLines("strip-rest"), FigureLines()
        self._graph = RateGraph("strip-graph", glyphs)
        self._flat.display = False

    def compose(self) -> ComposeResult:
        """Lay out both forms, one of which is shown."""
        yield self._above
        yield self._graph
        yield self._below
        yield self._flat

    def lie_flat(self, is_flat: bool) -> None:
        """Take three lines instead of a column."""
        self.set_class(is_flat, "-flat")
        self._flat.display = is_flat
        for widget in (self._above, self._graph, self._below):
            widget.display = not is_flat

    def show(self, view: PerformanceView) -> None:
        """Show these figures."""
        if self.has_class("-flat"):
            self._flat.show(strip_lines.flat_lines(view, self.size.width, self._glyphs))
            return
        self._above.show(strip_lines.speed_lines(view))
        self._graph.draw(Graph(view.rates_tps, view.ceiling.tps if view.ceiling else 0.0, marked=view.marked_seconds))
        self._below.show(strip_lines.below_graph(view, self._glyphs))

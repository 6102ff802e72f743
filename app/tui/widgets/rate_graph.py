"""The speed of a reply as a graph, on a base line of zero."""

from __future__ import annotations

from app.text.glyphs import BLOCKS, Glyphs
from app.tui.speed.graph_lines import Graph, graph_lines, top_of
from app.tui.widgets.figure_lines import FigureLines


class RateGraph(FigureLines):
    """Draws a ``Graph`` as large as the widget is; its scale only grows while a reply lasts.

    Args:
        glyphs: what to draw with.
    """

    DEFAULT_CSS = "RateGraph { height: 6; }"

    def __init__(self, id: str | None = None, glyphs: Glyphs = BLOCKS) -> None:
        super().__init__(id)
        self._glyphs = glyphs
        self._graph = Graph()
        self._top = 0.0

    def draw(self, graph: Graph) -> None:
        """Draw these figures."""
        if len(graph.rates_tps) < len(self._graph.rates_tps):
            self._top = 0.0  # another reply
        self._graph = graph
        self._top = max(self._top, top_of(graph))
        self.show(graph_lines(graph, self.size.width, self.size.height, self._glyphs, self._top))

    def on_resize(self) -> None:
        """Draw the same figures in the new size."""
        self.draw(self._graph)

"""Lines of figures and the graph of the rate, drawn line by line: only those that changed, without any layout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from app.text.glyphs import BLOCKS, Glyphs
from app.tui.speed.graph_lines import Graph, graph_lines, top_of
from app.tui.speed.lines import Line, Role


class FigureLines(Widget):
    """Shows lines of spans. A change of their number is the one thing that costs a layout."""

    DEFAULT_CSS = """
    FigureLines { height: auto; }
    FigureLines .figures--muted { color: $text-muted; }
    FigureLines .figures--heading { color: $primary; text-style: bold; }
    FigureLines .figures--bar { color: $accent; }
    FigureLines .figures--good { color: $success; }
    FigureLines .figures--warning { color: $warning; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "figures--muted",
        "figures--heading",
        "figures--bar",
        "figures--good",
        "figures--warning",
    }

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: list[Line] = []
        """As they stand."""
        self._base = Style.null()

    def show(self, lines: Iterable[Line]) -> None:
        """Show these lines; what stays the same is not drawn again."""
        before, self.lines = self.lines, list(lines)
        if len(before) != len(self.lines):
            self.refresh(layout=self.styles.height is not None and self.styles.height.is_auto)
            return
        width = self.size.width
        for y, (old, new) in enumerate(zip(before, self.lines, strict=True)):
            if old != new and width:
                self.refresh(Region(0, y, width, 1))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As high as there are lines."""
        return len(self.lines)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw some of the lines."""
        self._base = self.rich_style  # of all of them: it is put together anew from every widget above this one
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Draw one line."""
        width, base = self.size.width, self._base
        if y >= len(self.lines):
            return Strip.blank(width, base)
        segments = [
            Segment(
                span.text,
                base if span.role is Role.PLAIN else self.get_component_rich_style(f"figures--{span.role.value}"),
            )
            for span in self.lines[y]
        ]
        return Strip(segments).adjust_cell_length(width, base)


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

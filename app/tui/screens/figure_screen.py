"""The base of screens of figures, which look at what they show only while they are shown."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import Screen

from app.tui.drawing.lines import Line
from app.tui.widgets.figure_lines import FigureLines, KeyLine, ScreenTitle


class FigureScreen(Screen[None]):
    """Figures that scroll between title and keys: a subclass gives ``TITLE`` and ``PERIOD_S``, and
    shows them."""

    AUTO_FOCUS = "#figures-body"
    PERIOD_S: ClassVar[float]
    """Seconds between two looks; the timer runs once the subclass resumes it."""

    def compose(self) -> ComposeResult:
        """Lay out title, figures and keys."""
        yield ScreenTitle(self.TITLE or "")
        with VerticalScroll(id="figures-body"):
            yield FigureLines("figures")
        yield KeyLine()

    def on_mount(self) -> None:
        """Make the timer."""
        self._timer = self.set_interval(self.PERIOD_S, self.look, pause=True)

    def on_screen_suspend(self) -> None:
        """Look at nothing while something else is shown."""
        self._timer.pause()

    def on_resize(self) -> None:
        """Break the lines again."""
        self.call_after_refresh(self.show_figures)

    def look(self) -> None:
        """Time has passed."""
        self.show_figures()

    @abstractmethod
    def show_figures(self) -> None:
        """Show how things are."""

    @property
    def room(self) -> int:
        """Rows that the figures have without scrolling."""
        return self.query_one("#figures-body").outer_size.height

    def fill(self, draw: Callable[[int], list[Line]]) -> None:
        """Show what is drawn in a width; the scroll bar takes a column where there is more than has
        room."""
        drawn = draw(max(1, self.size.width))
        if len(drawn) > self.room:
            drawn = draw(max(1, self.size.width - 1))
        self.query_one("#figures", FigureLines).fill(drawn)

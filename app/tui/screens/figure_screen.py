"""Base of screens that show live figures and poll for them only while they are shown."""

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
    """Screen with scrolling figures between its title and its keys.

    A subclass defines ``TITLE``, ``PERIOD_S`` and ``show_figures``.
    """

    AUTO_FOCUS = "#figures-body"
    PERIOD_S: ClassVar[float]
    """Seconds between two polls; the timer runs once the subclass resumes it."""

    def compose(self) -> ComposeResult:
        """Lay out title, figures and keys."""
        yield ScreenTitle(self.TITLE or "")
        with VerticalScroll(id="figures-body"):
            yield FigureLines("figures")
        yield KeyLine()

    def on_mount(self) -> None:
        """Create the timer."""
        self._timer = self.set_interval(self.PERIOD_S, self.poll, pause=True)

    def on_screen_suspend(self) -> None:
        """Stop polling while another screen is shown."""
        self._timer.pause()

    def on_resize(self) -> None:
        """Draw the lines in the new width."""
        self.call_after_refresh(self.show_figures)

    def poll(self) -> None:
        """Update the figures; the timer calls this."""
        self.show_figures()

    async def action_explain(self) -> None:
        """Explain the words of the screen with a page of the manual."""
        await self.run_action("app.help('words')")

    @abstractmethod
    def show_figures(self) -> None:
        """Draw the present figures."""

    @property
    def body_rows(self) -> int:
        """Rows that are visible without scrolling."""
        return self.query_one("#figures-body").outer_size.height

    def fill(self, draw: Callable[[int], list[Line]]) -> None:
        """Show the lines that ``draw`` returns for the width, less one column for a scroll bar."""
        drawn = draw(max(1, self.size.width))
        if len(drawn) > self.body_rows:
            drawn = draw(max(1, self.size.width - 1))
        self.query_one("#figures", FigureLines).fill(drawn)

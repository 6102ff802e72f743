"""The performance screen: how fast, how fast it could be, where the time goes, and what the machine does."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from app.text.glyphs import choose_glyphs
from app.tui.bindings import bindings
from app.tui.screens.surroundings import Surroundings
from app.tui.speed import screen_lines
from app.tui.speed.graph_lines import Graph
from app.tui.speed.interface_pace import Refreshes
from app.tui.speed.watch import PerformanceView
from app.tui.textual_hacks import draw_thriftily
from app.tui.widgets.figure_lines import FigureLines, RateGraph

REFRESH_PERIOD_S = 0.5
"""Seconds between two refreshes: faster ones cannot be read."""


class PerformanceScreen(Screen[None]):
    """Shows figures while it is on top, and looks at nothing otherwise.

    It is a mode of its own and not pushed onto the chat: Textual goes on drawing what lies below a pushed screen, and a
    streaming reply would redraw this one ten times a second.

    Args:
        around: has the watch that the figures come from.
    """

    CSS_PATH = "performance.tcss"
    BINDINGS: ClassVar[list[BindingType]] = bindings("performance")
    AUTO_FOCUS = "#performance"

    def __init__(self, around: Surroundings) -> None:
        super().__init__()
        draw_thriftily(self)
        self._watch, self._keymap = around.watch, around.keymap
        self._refreshes = Refreshes(self._watch.pace)
        self._glyphs = choose_glyphs()
        self._timer: Timer | None = None
        self._is_looking = False

    def compose(self) -> ComposeResult:
        """Lay out the sections from top to bottom."""
        back = self._keymap.hint("performance.leave", "back")
        title = "Speed, live" + " " * 4 + " · ".join(filter(None, (back, "arrows scroll")))
        yield Static(Content(title), markup=False, id="performance-title")
        with VerticalScroll(id="performance"):
            yield FigureLines("speeds")
            yield RateGraph("graph", self._glyphs)
            yield FigureLines("notes")
            yield FigureLines("time")
            yield FigureLines("phases")
            yield FigureLines("machine")

    def on_mount(self) -> None:
        """Prepare to look; it begins when the screen is shown."""
        self._timer = self.set_interval(REFRESH_PERIOD_S, self._refresh_figures, pause=True)

    def on_screen_resume(self) -> None:
        """On top: look."""
        if not self._is_looking:
            self._is_looking = True
            self._watch.begin()
        if self._timer is not None:
            self._timer.resume()
        self.call_after_refresh(self.show_figures)

    def on_screen_suspend(self) -> None:
        """Another screen is on top: look no longer."""
        if self._is_looking:
            self._is_looking = False
            self._watch.end()
        if self._timer is not None:
            self._timer.pause()

    def on_resize(self, event: events.Resize) -> None:
        """Lay the figures out for the new width."""
        self.call_after_refresh(self.show_figures)

    def _refresh_figures(self) -> None:
        if not self._refreshes.is_left_out():
            self.show_figures()

    def show_figures(self) -> None:
        """Show the figures of this moment."""
        self._show(self._watch.look())

    def _show(self, view: PerformanceView) -> None:
        graph = self.query_one("#graph", RateGraph)
        width, glyphs = max(1, graph.size.width), self._glyphs
        earlier = view.figures.earlier
        graph.draw(
            Graph(
                view.rates_tps,
                view.ceiling.tps if view.ceiling else 0.0,
                earlier.median_tps if earlier else 0.0,
                view.marked_seconds,
            )
        )
        notes = screen_lines.ceiling_lines(view, width, glyphs) + screen_lines.stutter_lines(view, width, glyphs)
        for name, found in (
            ("#speeds", screen_lines.speed_lines(view, width)),
            ("#notes", notes),
            ("#time", screen_lines.time_lines(view.figures.last_reply, width, glyphs)),
            ("#phases", screen_lines.phase_lines(view, width, glyphs)),
            ("#machine", screen_lines.machine_lines(view, width, glyphs)),
        ):
            self.query_one(name, FigureLines).show(found)

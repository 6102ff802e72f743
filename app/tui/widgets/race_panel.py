"""Panels of the threads screen that replace the bars: a race, and the longest battery."""

from __future__ import annotations

import textwrap

from app.machine.tuning.battery_life import EnergyRun, battery_bars, battery_headline
from app.machine.tuning.race import Race, figure_lines, race_rows
from app.text.glyphs import Glyphs
from app.tui.drawing.lines import EMPTY, Line, Span, SpanRole, line, muted
from app.tui.drawing.panels import FRAME_COLUMNS, FRAME_ROWS, panel
from app.tui.widgets.thread_curve import coloured

_LEAST_ROWS = 3


class RacePanel:
    """Replay of a race: each lane is written again at the speed that it had.

    Attributes:
        is_shown: whether the screen shows a race instead of bars.
    """

    def __init__(self) -> None:
        self.is_shown = False
        self._earlier: Race | None = None
        self._since_s: float | None = None

    def begin(self, earlier: Race | None) -> None:
        """Show the next race; ``earlier`` is the one before."""
        self.is_shown = True
        self._earlier = earlier
        self._since_s = None

    def end(self) -> None:
        """Show bars again."""
        self.is_shown = False

    def lines(
        self, race: Race | None, now_s: float, width: int, height: int, glyphs: Glyphs
    ) -> list[Line]:
        """Return the panel at a time, on the clock of the race."""
        if race is None or race is self._earlier:
            body = [line("The race begins when the engine is free.")]
            return panel("Race", body, width, glyphs)
        if race.is_over and self._since_s is None:
            self._since_s = now_s
        elapsed_s = now_s - (self._since_s or now_s)
        is_replayed = race.is_over and elapsed_s >= race.duration_s
        figures = [line(text) for text in figure_lines(race)] if is_replayed else []
        n_rows = max(_LEAST_ROWS, height - FRAME_ROWS - len(figures) - bool(figures))
        columns = max(1, width - FRAME_COLUMNS)
        body = [line(row) for row in race_rows(race, elapsed_s, columns, n_rows, glyphs)]
        if figures:
            body += [EMPTY, *figures]
        foot = EMPTY
        if race.is_over:
            foot = line(muted("the same sentence, one after the other, replayed together"))
        return panel("Race", body, width, glyphs, foot=foot, frame=SpanRole.WRITING)


class BatteryPanel:
    """Energy per token with each thread count.

    Attributes:
        is_shown: whether the screen shows it instead of bars.
    """

    def __init__(self) -> None:
        self.is_shown = False

    def lines(self, run: EnergyRun | None, in_use: int, width: int, glyphs: Glyphs) -> list[Line]:
        """Return the panel."""
        columns = max(1, width - FRAME_COLUMNS)
        if run is None:
            body = [line("The measurement begins when the engine is free.")]
            return panel("Longest battery", body, width, glyphs)
        head = textwrap.wrap(battery_headline(run), columns)
        body = [line(Span(text, SpanRole.STRONG)) for text in head]
        if not run.trouble:
            unit = f"energy per token, J ({run.scope}); shorter bars last longer"
            body += [line(muted(text)) for text in textwrap.wrap(unit, columns)]
            bars = battery_bars(run, in_use, columns, glyphs)
            body += [coloured(bar_line, SpanRole.WRITING, glyphs) for bar_line in bars]
        return panel("Longest battery", body, width, glyphs)

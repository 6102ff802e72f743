"""Results of tuning on the screen: a curve of thread counts, a table of memory modes."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from app.text.glyphs import Glyphs
from app.tuning.thread_bars import TITLES, BarLine, Role, curve_lines, option_lines

if TYPE_CHECKING:
    from app.tuning.thread_bars import Comparison, Curve


STYLES = {Role.HEADING: "bold", Role.KIND: "dim", Role.PLAIN: "", Role.BEST: "bold $success", Role.DROPPED: "dim"}


class ThreadCurve(Static):
    """Shows one phase; nothing is drawn while it stays the same."""

    def __init__(self, phase: str, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._phase = phase
        self._shown: list[BarLine] = []
        self._given: tuple[Curve | None, int, bool, Glyphs] | None = None

    def show(self, curve: Curve | None, in_use: int, is_chosen: bool, glyphs: Glyphs) -> None:
        """Show a curve, or how things stand before anything was measured.

        Args:
            in_use: the count in use, marked.
            is_chosen: whether digits choose for this phase.
        """
        self._given = (curve, in_use, is_chosen, glyphs)
        title = TITLES[self._phase]
        lines = [BarLine(f"[{title}]" if is_chosen else f" {title}", Role.HEADING)]
        if curve is None:
            lines.append(BarLine(f"{glyphs.here}{in_use:>3} in use, not measured", Role.PLAIN))
        else:
            lines += curve_lines(curve, in_use, self.content_size.width or 38, glyphs)
        if lines != self._shown:
            self._shown = lines
            self.styles.height = len(lines)  # not measured by Textual, which may do it before the width has settled
            self.update(Content("\n").join(Content(line.text).stylize(STYLES[line.role]) for line in lines))

    def on_resize(self) -> None:
        """Draw the bars in the new width."""
        if self._given is not None:
            self.show(*self._given)


class OptionTable(Static):
    """Shows one comparison after the other; nothing is drawn while they stay the same."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._shown: list[BarLine] = []

    def show(self, comparisons: tuple[tuple[Comparison, str], ...], glyphs: Glyphs, columns: int) -> None:
        """Show comparisons, each with the option in use, in ``columns`` columns."""
        lines = [line for found, in_use in comparisons for line in option_lines(found, in_use, glyphs)]
        lines = [wrapped for line in lines for wrapped in _wrapped(line, max(20, columns))]
        if lines != self._shown:
            self._shown = lines
            self.display = bool(lines)
            self.styles.height = len(lines)  # not measured by Textual, which may do it before the width has settled
            self.update(Content("\n").join(Content(line.text).stylize(STYLES[line.role]) for line in lines))


def _wrapped(line: BarLine, columns: int) -> list[BarLine]:
    """Break a sentence; a row of figures is short enough anywhere but on the narrowest screens, which cut it."""
    if not line.text.startswith("   ") or len(line.text) <= columns:
        return [line]
    return [BarLine(text, line.role) for text in textwrap.wrap(line.text, columns, subsequent_indent="   ")]

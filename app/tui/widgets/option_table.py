"""Ways to keep weights, or keys and values, in memory, as lines; colour repeats what marks and words say."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from app.text.glyphs import Glyphs
from app.tui.widgets.thread_curve import STYLES
from app.tuning.option_lines import option_lines
from app.tuning.thread_bars import BarLine

if TYPE_CHECKING:
    from app.tuning.option_lines import Comparison


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

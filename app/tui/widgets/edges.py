"""The first and the last line of every screen: title with its context, and keys with what they do."""

from __future__ import annotations

from collections.abc import Iterable

from app.text.glyphs import choose_glyphs
from app.tui.drawing.lines import EMPTY, Line, Role, Span, apart, muted, spread_lines, title
from app.tui.widgets.figure_lines import FigureLines

Key = tuple[str, str]
"""A key's name and what it does; without a name it is left out."""


class ScreenTitle(FigureLines):
    """Names the screen, says what it is about, and at the right how things stand."""

    DEFAULT_CSS = "ScreenTitle { height: 1; padding: 0 1; }"

    def __init__(self, name: str, id: str | None = None) -> None:
        super().__init__(id=id)
        self._title = name
        self._given: tuple[str, Line] = ("", EMPTY)

    def tell(self, context: str = "", state: Line = EMPTY) -> None:
        """Show the title with this context and state."""
        self._given = (context, state)
        begin = (title(self._title), muted(f"   {context}" if context else ""))
        self.show([apart(begin, state, self.size.width)])

    def on_resize(self) -> None:
        """Keep the state at the right end."""
        self.tell(*self._given)


class KeyLine(FigureLines):
    """Says what keys do now, in as many lines as that takes."""

    DEFAULT_CSS = "KeyLine { height: 1; padding: 0 1; }"

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._keys: tuple[Key, ...] = ()

    def tell(self, keys: Iterable[Key]) -> None:
        """Show these keys."""
        self._keys = tuple(keys)
        between = choose_glyphs().between
        parts = [(Span(key, Role.ACCENT), muted(f" {words}")) for key, words in self._keys if key]
        lines = spread_lines(parts, self.size.width or self.app.size.width - 2, between)
        self.styles.height = max(1, len(lines))  # not measured by Textual, which does it before the width has settled
        self.show(lines)

    def on_resize(self) -> None:
        """Break the line anew."""
        self.tell(self._keys)

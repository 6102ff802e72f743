"""Plain text in which the found places can be marked."""

from __future__ import annotations

import re
from typing import ClassVar

from textual.content import Content
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Static

from app.tui.chat.text_search import spans_in

FOUND = "found"
FOUND_NOW = "found-now"
"""Style classes of a found place, and of the one that is shown."""


def marked(
    widget: Widget, content: Content, spans: list[tuple[int, int]], number: int | None
) -> Content:
    """Mark places in a text.

    Args:
        widget: widget that shows the text and has the two classes.
        spans: start and end of each place in characters.
        number: number of the place that is shown; None if it is in another text.
    """
    for n, (start, end) in enumerate(spans):
        name = FOUND_NOW if n == number else FOUND
        # Styles by name would lose an opaque background.
        style = Style.from_styles(widget.get_component_styles(name))
        content = content.stylize(style, start, end)
    return content


class FoundText(Static):
    """Plain text with marked places.

    Attributes:
        pattern: pattern of the places; None if nothing is marked.
        number: number of the place that is shown; None if it is in another text.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {FOUND, FOUND_NOW}

    def __init__(self, classes: str) -> None:
        super().__init__(markup=False, classes=classes)
        self.pattern: re.Pattern[str] | None = None
        self.number: int | None = None
        self._plain = ""

    def show(self, text: str, *, layout: bool = True) -> None:
        """Show a text, with its marks."""
        self._plain = text
        self.update(Content(text), layout=layout)

    def render(self) -> Content:
        """Return the text with its marks."""
        return marked(self, Content(self._plain), spans_in(self._plain, self.pattern), self.number)

    def mark_found(self, pattern: re.Pattern[str] | None, number: int | None) -> None:
        """Mark the places of a pattern; None removes the marks."""
        if (pattern, number) != (self.pattern, self.number):
            self.pattern = pattern
            self.number = number
            self.refresh()

    def row_of_found(self, number: int) -> int:
        """Return the row of a place on the screen."""
        spans = spans_in(self._plain, self.pattern)[: number + 1]
        if not spans or not self.content_size.width:
            return self.content_region.y
        before = Content(self._plain[: spans[-1][0] + 1])
        return self.content_region.y + len(before.wrap(self.content_size.width)) - 1

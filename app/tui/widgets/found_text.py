"""Marks of found places in the texts of messages."""

from __future__ import annotations

from textual.content import Content
from textual.style import Style
from textual.widget import Widget

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

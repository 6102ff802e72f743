"""Text that changes often: laid out again only when it needs more lines or fewer."""

from __future__ import annotations

from typing import cast

from textual.content import Content
from textual.css.styles import RulesMap
from textual.widget import Widget


class GrowingText(Widget):
    """A text whose update costs no layout of the screen while its height stays the same."""

    def __init__(self, classes: str | None = None) -> None:
        super().__init__(markup=False, classes=classes)
        self._content = Content("")

    def render(self) -> Content:
        """Return the text."""
        return self._content

    def show(self, content: Content) -> None:
        """Show this in place of what is there."""
        width, height = self.content_size
        self._content = content
        self.refresh(layout=width == 0 or self.needed_rows != height)

    @property
    def needed_rows(self) -> int:
        """Rows the whole text needs at the present width; 0 before it was laid out."""
        width = self.content_size.width
        return self._content.get_height(cast(RulesMap, self.styles), width) if width else 0

"""Text that changes often: laid out again only when it needs more lines or fewer."""

from __future__ import annotations

from typing import cast

from textual.content import Content
from textual.css.styles import RulesMap
from textual.widgets import Static


class GrowingText(Static):
    """A static text whose update costs no layout of the screen while its height stays the same."""

    def __init__(self, classes: str | None = None) -> None:
        super().__init__(markup=False, classes=classes)

    def show(self, content: Content) -> None:
        """Show this in place of what is there."""
        width, height = self.content_size
        keeps_height = width > 0 and content.get_height(cast(RulesMap, self.styles), width) == height
        self.update(content, layout=not keeps_height)

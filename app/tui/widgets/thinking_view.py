"""Thinking before an answer: a short tail while it grows, one line afterwards, all of it on demand."""

from __future__ import annotations

from typing import cast

from textual.content import Content
from textual.css.styles import RulesMap
from textual.widget import Widget

from app.conversations import lines
from app.conversations.thinking import Thinking

TAIL_CHARS = 240
TAIL_LINES = 3
KEPT_BACK_CHARS = 2000
"""Characters at the end of the thinking that the tail is cut from, however long the thinking is."""


def tail_of(text: str) -> str:
    """Return the last words, few enough for a glance; white space and line breaks are cut down to single ones."""
    lines = [line.strip() for line in text[-KEPT_BACK_CHARS:].splitlines() if line.strip()]
    tail = "\n".join(lines[-TAIL_LINES:])
    return tail if len(tail) <= TAIL_CHARS else "... " + tail[-TAIL_CHARS:].partition(" ")[2]


class ThinkingView(Widget):
    """Plain text, muted; never Markdown. It changes often, and lays the screen out only when its height does."""

    def __init__(self) -> None:
        super().__init__(markup=False, classes="thinking")
        self._content = Content("")
        self.text = ""
        self.thinking: Thinking | None = None
        """Figures, once the thinking is over."""
        self.is_unfolded = False

    def append(self, text: str) -> None:
        """Add text."""
        self.text += text
        self._draw()

    def finish(self, thinking: Thinking) -> None:
        """Fold to one line."""
        self.text, self.thinking = thinking.text, thinking
        self._draw()

    def toggle(self) -> None:
        """Unfold or fold."""
        self.is_unfolded = not self.is_unfolded
        self._draw()

    def on_click(self) -> None:
        """Do the same for the mouse."""
        self.toggle()

    @property
    def shown(self) -> str:
        """The text as it stands on the screen."""
        if self.thinking is None:
            return f"thinking\n{self.text.strip() if self.is_unfolded else tail_of(self.text)}".rstrip()
        if self.is_unfolded:
            return f"- {lines.thinking_summary(self.thinking)}\n{self.text.strip()}"
        return f"+ {lines.thinking_summary(self.thinking)}"

    def render(self) -> Content:
        """Return the text."""
        return self._content

    def _draw(self) -> None:
        self._content = Content(self.shown)
        width, height = self.content_size
        needed = self._content.get_height(cast(RulesMap, self.styles), width) if width else 0
        self.refresh(layout=not width or needed != height)

"""The line above the prompt in which one types the text to find in the conversation."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.content import Content
from textual.widgets import Static

from app.text.clean_text import clean_line, screen_text
from app.tui.bindings import bindings
from app.tui.keymap import Keymap

MOST_CHARS = 200
"""Limit on the text to find."""
_WIDE_COLUMNS = 70
"""Width from which the line names the keys."""


class FindBar(Static, can_focus=True):
    """Takes the typed text; Enter ends typing, and then letters go from place to place.

    Args:
        find: shows the first place of a text.
        step: goes to a later place, or to an earlier one if negative.
    """

    BINDINGS = bindings("find")

    def __init__(
        self,
        keymap: Keymap,
        find: Callable[[str], object],
        step: Callable[[int], object],
    ) -> None:
        super().__init__(markup=False, id="find-bar")
        self.text = ""
        self.is_typing = True
        self._keymap = keymap
        self._find = find
        self._step = step
        self._count_line = ""

    def begin(self, text: str = "") -> None:
        """Show the line and take keys; with a text, find it."""
        self.display = True
        self.is_typing = not text
        self.text = clean_line(text, MOST_CHARS)
        self.focus()
        self._find(self.text)

    def show_count(self, count_line: str) -> None:
        """Show how many places there are."""
        self._count_line = count_line
        cursor = "_" if self.is_typing else ""
        words = [f"find: {screen_text(self.text)}{cursor}", count_line]
        if self.app.size.width >= _WIDE_COLUMNS:
            if self.is_typing:
                words.append(self._keymap.hint("find.next", "next"))
            else:
                words += [
                    self._keymap.hint("find.forward", "next"),
                    self._keymap.hint("find.back", "previous"),
                ]
            words.append(self._keymap.hint("chat.stop", "back"))
        self.update(Content(" · ".join(filter(None, words))))

    def on_key(self, event: events.Key) -> None:
        """Change the text, unless typing has ended."""
        if not self.is_typing:
            return
        if event.key == "backspace":
            self._type(self.text[:-1])
        elif event.key == "ctrl+u":
            self._type("")
        elif event.is_printable and event.character is not None:
            self._type(self.text + event.character)
        else:
            return
        event.stop()
        event.prevent_default()

    def on_paste(self, event: events.Paste) -> None:
        """Insert pasted text."""
        event.stop()
        self.is_typing = True
        self._type(self.text + clean_line(event.text[: 2 * MOST_CHARS], MOST_CHARS))

    def _type(self, text: str) -> None:
        self.text = text[:MOST_CHARS]
        self._find(self.text)

    def action_next(self) -> None:
        """End typing, or go to the next place."""
        if self.is_typing:
            self.is_typing = False
            self.show_count(self._count_line)
        else:
            self._step(1)

    def action_down(self) -> None:
        """Go to the next place, and go on typing."""
        self._step(1)

    def action_up(self) -> None:
        """Go to the previous place, and go on typing."""
        self._step(-1)

    def action_forward(self) -> None:
        """Go to the next place."""
        self._step(1)

    def action_back(self) -> None:
        """Go to the previous place."""
        self._step(-1)

    def action_type(self) -> None:
        """Change the text again."""
        self.is_typing = True
        self.show_count(self._count_line)

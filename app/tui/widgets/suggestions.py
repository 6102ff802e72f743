"""The commands that what is typed could become, listed above the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from app.tui.actions import Action, commands_starting

_LEAST_TITLE_COLUMNS = 24


def suggestion_lines(actions: Sequence[Action], columns: int, key: str) -> list[str]:
    """Write the commands with what they do, in two columns; the first one is what the key completes to."""
    usages = [f"/{action.command} {action.argument}".rstrip() for action in actions]
    widest = min(max(map(len, usages), default=0), max(1, columns - _LEAST_TITLE_COLUMNS))
    lines = [f"{usage:<{widest}}  {action.title}" for usage, action in zip(usages, actions, strict=True)]
    if lines and key and len(completes := f"{lines[0]}  ({key})") <= columns:
        lines[0] = completes
    return [line if len(line) <= columns else f"{line[: max(0, columns - 3)]}..." for line in lines]


class Suggestions(Static):
    """Shown only while a command is being typed; the first line is what the key completes to."""

    def __init__(self, key: str, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._key = key
        self.display = False
        self._text = ""

    def on_resize(self) -> None:
        """Write the lines for the new width."""
        self.show_for(self._text)

    def show_for(self, text: str) -> None:
        """List the commands for the prompt's text."""
        self._text = text
        matching = commands_starting(text)
        self.display = bool(matching)
        if not matching:
            return
        lines = suggestion_lines(matching, self.app.size.width - 2, self._key)
        first = Content(f" {lines[0]}").stylize("bold")
        self.update(Content("\n").join([first, *(Content(f" {line}") for line in lines[1:])]))

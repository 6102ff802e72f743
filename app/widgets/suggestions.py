"""The commands that what is typed could become, listed above the prompt."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from app.actions import Action, commands_starting

_COLUMN = 18


def suggestion_line(action: Action) -> str:
    """Write one command with what it does."""
    usage = f"/{action.command} {action.argument}".rstrip()
    return f"{usage:<{_COLUMN}} {action.title}"


class Suggestions(Static):
    """Shown only while a command is being typed; the first line is what Tab completes to."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self.display = False

    def show_for(self, text: str) -> None:
        """List the commands for the prompt's text."""
        matching = commands_starting(text)
        self.display = bool(matching)
        if not matching:
            return
        lines = [suggestion_line(action) for action in matching]
        first = Content(f" {lines[0]}  (Tab)").stylize("bold")
        self.update(Content("\n").join([first, *(Content(f" {line}") for line in lines[1:])]))

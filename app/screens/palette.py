"""All there is to do, by name: Textual's command palette for any terminal, without a blinking cursor."""

from __future__ import annotations

from textual.command import CommandPalette
from textual.widgets import Input

HINT = "Type to search · Enter does it · Esc back"


class Palette(CommandPalette):
    """Lists and searches ``JalopyApp.get_system_commands``."""

    CSS_PATH = "palette.tcss"

    def __init__(self) -> None:
        super().__init__(placeholder=HINT, id="--command-palette")

    def on_mount(self) -> None:
        """A blinking cursor draws twice a second for nothing."""
        self.query_one(Input).cursor_blink = False

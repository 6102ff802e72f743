"""All there is to do, by name: Textual's command palette for any terminal, without a blinking cursor."""

from __future__ import annotations

from textual.await_complete import AwaitComplete
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.widgets import Input
from textual.worker import Worker

HINT = "Type to search · Enter does it · Esc back"

MOST_CHARS = 100
"""No command has a longer name."""


class Commands(Provider):
    """Finds actions by name; unlike Textual's own provider it takes "[name]" for text, not for markup."""

    async def discover(self) -> Hits:
        """List all, by name."""
        for command in sorted(self.app.get_system_commands(self.screen), key=lambda command: command.title):
            yield DiscoveryHit(Content(command.title), command.callback, help=Content(command.help))  # type: ignore[arg-type]

    async def search(self, query: str) -> Hits:
        """List what has these letters."""
        matcher = self.matcher(query)
        for command in self.app.get_system_commands(self.screen):
            if (score := matcher.match(command.title)) > 0:
                shown = Content(command.title) if "[" in command.title else matcher.highlight(command.title)
                yield Hit(score, shown, command.callback, help=Content(command.help))  # type: ignore[arg-type]


class Palette(CommandPalette):
    """Lists and searches ``JalopyApp.get_system_commands``."""

    CSS_PATH = "palette.tcss"

    def __init__(self) -> None:
        super().__init__([Commands], placeholder=HINT)

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Leave once, whatever is pressed meanwhile, as ``dismiss_once`` does."""
        return super().dismiss(result) if self.is_active else AwaitComplete()

    def on_mount(self) -> None:
        """A blinking cursor draws twice a second for nothing; each letter of a long text costs more than the last."""
        for typed in self.query(Input):  # none where it is left before it stands
            typed.cursor_blink = False
            typed.max_length = MOST_CHARS

    def _gather_commands(self, search_value: str) -> Worker[None] | None:  # type: ignore[override]
        """Look for commands, unless the palette has been left: Textual 8.2 ends the program then. Remove when not."""
        return super()._gather_commands(search_value) if self.is_active else None

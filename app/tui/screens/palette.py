"""All there is to do, by name: Textual's command palette for any terminal, without a blinking
cursor."""

from __future__ import annotations

from textual.app import SystemCommand
from textual.await_complete import AwaitComplete
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.widgets import Input
from textual.worker import Worker

from app.text.glyphs import cut
from app.tui.actions import ACTIONS, FIRST_NEEDED

HINT = "Type to search · Enter does it · Esc back"

MOST_CHARS = 100
"""No command has a longer name."""


_ALSO = {action.title: action.also for action in ACTIONS.values()}
_FIRST = [ACTIONS[one].title for one in FIRST_NEEDED]
_MOST_COLUMNS = 80
_FRAME_COLUMNS = 7
_SURE = 100.0
"""Score of an entry that has the very words: above those that have their letters."""


class Commands(Provider):
    """Finds actions by name, command and further words; it takes "[name]" for text, not for
    markup."""

    async def discover(self) -> Hits:
        """List all: what is needed first, then by name."""
        found = self.app.get_system_commands(self.screen)
        for command in sorted(found, key=lambda one: (_place(one.title), one.title)):
            yield DiscoveryHit(self._row(command), command.callback, text=command.title)

    async def search(self, query: str) -> Hits:
        """List what has these letters in its name, or these words elsewhere."""
        matcher = self.matcher(query)
        words = query.lower().split()
        for command in self.app.get_system_commands(self.screen):
            said = f"{command.title} {command.help} {_ALSO.get(command.title, '')}".lower()
            if all(word in said for word in words):
                score = _SURE
            else:
                score = matcher.match(command.title)
            if score > 0:
                yield Hit(score, self._row(command), command.callback, text=command.title)

    def _row(self, command: SystemCommand) -> Content:
        """Write an entry in one row: its name, its keys and its command."""
        columns = min(_MOST_COLUMNS, self.app.size.width) - _FRAME_COLUMNS
        help_text = cut(command.help, columns // 2)
        title = cut(command.title, columns - len(help_text) - 2)
        gap = columns - len(title) - len(help_text)
        return Content(title + " " * gap + help_text).stylize("$accent", columns - len(help_text))


def _place(title: str) -> int:
    if title in _FIRST:
        return _FIRST.index(title)
    return len(_FIRST)


class Palette(CommandPalette):
    """Lists and searches ``JalopyApp.get_system_commands``."""

    CSS_PATH = "palette.tcss"

    def __init__(self) -> None:
        super().__init__([Commands], placeholder=HINT)

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Leave once, whatever is pressed meanwhile, as ``dismiss_once`` does."""
        if self.is_active:
            return super().dismiss(result)
        return AwaitComplete()

    def on_mount(self) -> None:
        """A blinking cursor draws twice a second for nothing; each letter of a long text costs more
        than the last."""
        for typed in self.query(Input):  # none where it is left before it is there
            typed.cursor_blink = False
            typed.max_length = MOST_CHARS

    def _gather_commands(self, search_value: str) -> Worker[None] | None:  # type: ignore[override]
        """Look for commands, unless the palette has been left: Textual 8.2 ends the program then.

        Remove when not.
        """
        if self.is_active:
            return super()._gather_commands(search_value)
        return None

"""The palette: Textual's command palette with all actions, without a blinking cursor."""

from __future__ import annotations

from textual.app import SystemCommand
from textual.await_complete import AwaitComplete
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.widgets import Input
from textual.worker import Worker

from app.text.glyphs import cut
from app.tui.actions import ACTIONS, FIRST_NEEDED

HINT = "Type to search · Enter run · Esc back"

MOST_CHARS = 100
"""Limit on typed text; no command has a longer name."""

_KEYWORDS = {action.title: action.also for action in ACTIONS.values()}
_FIRST = [ACTIONS[action_id].title for action_id in FIRST_NEEDED]
_MOST_COLUMNS = 80
_FRAME_COLUMNS = 7
_EXACT_SCORE = 100.0
"""Score of an entry that contains the typed words, above entries that only contain the letters."""


class Commands(Provider):
    """Search for actions by title, command and keywords. Titles are text, not markup."""

    async def discover(self) -> Hits:
        """Yield all actions: the most important first, then by title."""
        entries = self.app.get_system_commands(self.screen)
        for command in sorted(entries, key=lambda entry: (_rank(entry.title), entry.title)):
            yield DiscoveryHit(self._row(command), command.callback, text=command.title)

    async def search(self, query: str) -> Hits:
        """Yield actions with these letters in the title, or these words anywhere."""
        matcher = self.matcher(query)
        words = query.lower().split()
        for command in self.app.get_system_commands(self.screen):
            text = f"{command.title} {command.help} {_KEYWORDS.get(command.title, '')}".lower()
            if all(word in text for word in words):
                score = _EXACT_SCORE
            else:
                score = matcher.match(command.title)
            if score > 0:
                yield Hit(score, self._row(command), command.callback, text=command.title)

    def _row(self, command: SystemCommand) -> Content:
        """Return an entry's row: title at the left, keys and command at the right."""
        columns = min(_MOST_COLUMNS, self.app.size.width) - _FRAME_COLUMNS
        help_text = cut(command.help, columns // 2)
        title = cut(command.title, columns - len(help_text) - 2)
        gap = columns - len(title) - len(help_text)
        return Content(title + " " * gap + help_text).stylize("$accent", columns - len(help_text))


def _rank(title: str) -> int:
    if title in _FIRST:
        return _FIRST.index(title)
    return len(_FIRST)


class Palette(CommandPalette):
    """Palette of ``JalopyApp.get_system_commands``."""

    CSS_PATH = "palette.tcss"

    def __init__(self) -> None:
        super().__init__([Commands], placeholder=HINT)

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Close the palette, only once even if another key follows, as ``dismiss_once`` does."""
        if self.is_active:
            return super().dismiss(result)
        return AwaitComplete()

    def on_mount(self) -> None:
        """Turn off the blinking cursor, which redraws twice a second, and limit the text.

        The time of a search grows with the length of the text.
        """
        for field in self.query(Input):  # none if the palette is closed before it is complete
            field.cursor_blink = False
            field.max_length = MOST_CHARS

    def _gather_commands(self, search_value: str) -> Worker[None] | None:  # type: ignore[override]
        """Search for commands, unless the palette is closed.

        Textual 8.2 would end the program. Remove this method when Textual does not.
        """
        if self.is_active:
            return super()._gather_commands(search_value)
        return None

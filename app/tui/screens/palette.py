"""The palette: Textual's command palette with all actions, without a blinking cursor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol, cast

from textual.app import SystemCommand
from textual.await_complete import AwaitComplete
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.widgets import Input
from textual.worker import Worker

from app.text.glyphs import cut
from app.tui.action_groups import GROUPS, group_of
from app.tui.actions import ACTIONS, CHAT

if TYPE_CHECKING:
    from textual.types import IgnoreReturnCallbackType

HINT = "Type to search · Enter run · Esc back"

MOST_CHARS = 100
"""Limit on typed text; no command has a longer name."""

_ACTION_IDS = {
    action.title: action_id
    for action_id, action in sorted(
        ACTIONS.items(), key=lambda item: item[1].scope in ("app", CHAT)
    )
}
"""Ids of actions by title; those of the application and the chat win over others."""
_LEFT_OUT = frozenset(
    action.title
    for action_id, action in ACTIONS.items()
    if action.scope == "prompt" or action_id in ("chat.stop", "app.interrupt")
)
"""Titles of actions that make sense by their keys alone."""
_USED = "Used"
"""Group of the actions that were used last."""
_HERE = "Here"
"""Group of the actions of the shown screen, if it is not the chat."""
_MOST_USED = 3
_GROUP_COLUMNS = 9
_GROUPS_FROM_COLUMNS = 60
"""Width of a row from which it begins with its group."""
_MOST_COLUMNS = 80
_FRAME_COLUMNS = 7
_ARGUMENT = re.compile(r"(?<=/)(\w+) .*")
_EXACT_SCORE = 100.0
"""Score of an entry that contains the typed words, above entries that only contain the letters."""


class RemembersUse(Protocol):
    """Application that remembers which actions were used."""

    used_commands: list[str]
    """Titles of the actions, the last used first."""


class Commands(Provider):
    """Search for actions by title, command and keywords. Titles are text, not markup."""

    async def discover(self) -> Hits:
        """Yield the actions by groups, those that were used last first."""
        entries = {command.title: command for command in self._entries()}
        used_titles = [title for title in self._used_titles if title in entries][:_MOST_USED]
        titles = sorted(entries.keys() - set(used_titles), key=_order)
        shown_group = ""
        for title in [*used_titles, *titles]:
            group = _USED if title in used_titles else _group_of(title)
            label = group if group != shown_group else ""
            shown_group = group
            command = entries[title]
            yield DiscoveryHit(self._row(command, label), self._run(command), text=title)

    async def search(self, query: str) -> Hits:
        """Yield actions with these letters in the title, or these words anywhere."""
        matcher = self.matcher(query)
        words = query.lower().split()
        for command in self._entries():
            text = f"{command.title} {command.help} {_keywords(command.title)}".lower()
            if all(word in text for word in words):
                score = _EXACT_SCORE
            else:
                score = matcher.match(command.title)
            if score > 0:
                yield Hit(score, self._row(command), self._run(command), text=command.title)

    def _entries(self) -> list[SystemCommand]:
        return [
            command
            for command in self.app.get_system_commands(self.screen)
            if command.title not in _LEFT_OUT
        ]

    @property
    def _used_titles(self) -> list[str]:
        return cast(RemembersUse, self.app).used_commands

    def _run(self, command: SystemCommand) -> IgnoreReturnCallbackType:
        """Return a function that runs an action and remembers that it was used."""

        def run() -> object:
            if command.title in self._used_titles:
                self._used_titles.remove(command.title)
            self._used_titles.insert(0, command.title)
            return command.callback()

        return run

    def _row(self, command: SystemCommand, group: str | None = None) -> Content:
        """Return an entry's row: title at the left, keys and command at the right.

        Args:
            group: name of a group that begins here, empty if it began above; None in a list without
                groups. A row with a group shows commands without their arguments.
        """
        columns = min(_MOST_COLUMNS, self.app.size.width) - _FRAME_COLUMNS
        help_text = command.help
        label = ""
        if group is not None:
            help_text = _ARGUMENT.sub(r"\1", help_text)
            if columns >= _GROUPS_FROM_COLUMNS:
                label = f"{group:<{_GROUP_COLUMNS}}"
        columns -= len(label)
        help_text = cut(help_text, columns // 2)
        title = cut(command.title, columns - len(help_text) - 2)
        gap = columns - len(title) - len(help_text)
        row = Content(label + title + " " * gap + help_text)
        row = row.stylize("$text-muted", 0, len(label))
        return row.stylize("$accent", len(row) - len(help_text))


def _keywords(title: str) -> str:
    action_id = _ACTION_IDS.get(title)
    if action_id is None:
        return ""
    return ACTIONS[action_id].also


def _group_of(title: str) -> str:
    """Return the group of an action, of a persona, or of an action of the shown screen alone."""
    action_id = _ACTION_IDS.get(title)
    if action_id is None:
        return group_of("chat.persona")
    if ACTIONS[action_id].scope not in ("app", CHAT):
        return _HERE
    return group_of(action_id)


def _order(title: str) -> tuple[int, int, str]:
    """Return the place of an action: by group, and there as in the list of groups."""
    group = _group_of(title)
    if group == _HERE:
        return -1, 0, title
    action_ids = GROUPS[group]
    action_id = _ACTION_IDS.get(title, "chat.persona")
    place = action_ids.index(action_id) if action_id in action_ids else len(action_ids)
    return list(GROUPS).index(group), place, title


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

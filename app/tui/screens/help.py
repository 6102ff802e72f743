"""The help screen: keys and commands from the table of actions, those of the focus first.

What is typed filters them.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from app.text.record import record
from app.tui.action_groups import GROUPS, group_of, sorted_by_group
from app.tui.actions import ACTIONS, FIRST_NEEDED
from app.tui.bindings import bindings
from app.tui.keymap import Keymap, show_key
from app.tui.textual_hacks import dismiss_once
from app.tui.widgets.prompt import Prompt

_HEADINGS = {
    "prompt": "In the prompt",
    "message": "On this message",
    "chat": "In the chat",
    "app": "Everywhere",
}
_FUNCTION_KEY = re.compile(r"F(\d+)")
_NOTHING_FOUND = "No key or command has all these words"
_MAX_COLUMNS = 74
_FRAME_COLUMNS = 6
_GAP_COLUMNS = 2
_MAX_FILTER_CHARS = 40
TWO_COLUMNS_FROM = 120
"""Width of the screen from which there are two columns, as in the style sheet."""
_KEY_COLUMN = 21
_NARROW_KEY_COLUMN = 15


@record
class HelpEntry:
    """A key or a command with its description."""

    key: str
    description: str
    also: str = ""
    """Further words by which the entry is found."""

    def has_words(self, words: Iterable[str]) -> bool:
        """Return whether the entry contains all of these words."""
        text = f"{self.key} {self.description} {self.also}".casefold()
        return all(word in text for word in words)


@record
class HelpSection:
    """A heading with its entries."""

    heading: str
    entries: list[HelpEntry]
    is_commands: bool = False
    """Whether the entries are commands to type, which have a column of their own."""


def key_entries(scope: str, keymap: Keymap) -> list[HelpEntry]:
    """Return the actions of a scope that have keys and are not among those a newcomer needs
    first; function keys come first, by their numbers."""
    entries = [
        HelpEntry(keymap.key_names(action_id), action.title, action.also)
        for action_id, action in ACTIONS.items()
        if action.scope == scope and keymap.keys_of(action_id)
    ]
    if scope == "prompt":
        entries.append(HelpEntry("Up, Down", "Previous and next message, in an empty prompt"))
    return sorted(entries, key=_key_order)


def _key_order(entry: HelpEntry) -> int:
    match = _FUNCTION_KEY.match(entry.key)
    return int(match[1]) if match else len(ACTIONS)


def help_sections(screen: Screen[object], keymap: Keymap) -> list[HelpSection]:
    """Return the sections: keys of the focused widget first, commands last. Each key is listed
    once."""
    is_prompt = isinstance(screen.focused, Prompt)
    sections: list[HelpSection] = []
    if is_prompt:
        essentials = [
            HelpEntry(keymap.key_names(action_id), ACTIONS[action_id].title)
            for action_id in FIRST_NEEDED
            if keymap.keys_of(action_id)
        ]
        sections.append(HelpSection("Start here", essentials))
    for scope in _active_scopes(screen, is_prompt):
        heading = _HEADINGS.get(scope, "On this screen")
        sections.append(HelpSection(heading, key_entries(scope, keymap)))
    sections.append(HelpSection("More keys", _textual_keys(screen)))
    for group in GROUPS:
        sections.append(HelpSection(f"Commands: {group.lower()}", _commands(group), True))
    return _without_repetition(sections)


def _without_repetition(sections: list[HelpSection]) -> list[HelpSection]:
    """Return the sections without the entries of an earlier one, and without empty ones."""
    shown: set[tuple[str, str]] = set()
    remaining = []
    for section in sections:
        entries = [
            entry for entry in section.entries if (entry.key, entry.description) not in shown
        ]
        shown |= {(entry.key, entry.description) for entry in entries}
        if entries:
            remaining.append(HelpSection(section.heading, entries, section.is_commands))
    return remaining


def _active_scopes(screen: Screen[object], is_prompt: bool) -> list[str]:
    """Return the scopes whose keys work now, the one nearest to the focus first."""
    scopes = ["prompt"] if is_prompt else []
    for active in screen.active_bindings.values():
        scope = (active.binding.id or "").partition(".")[0]
        if scope not in ("", "app", *scopes):
            scopes.append(scope)
    scopes.insert(1, "app")
    return scopes


def _textual_keys(screen: Screen[object]) -> list[HelpEntry]:
    """Return keys of Textual's own widgets, which are not in the table of actions."""
    active = [active.binding for active in screen.active_bindings.values()]
    return [
        HelpEntry(show_key(binding.key), binding.description)
        for binding in active
        if not binding.id and binding.description and binding.show and not binding.system
    ]


def _commands(group: str) -> list[HelpEntry]:
    """Return the commands of a group."""
    action_ids = [
        action_id
        for action_id, action in ACTIONS.items()
        if action.slash and group_of(action_id) == group
    ]
    entries = []
    for action_id in sorted_by_group(action_ids):
        action = ACTIONS[action_id]
        names = ", ".join(f"/{name}" for name in action.names)
        entries.append(HelpEntry(f"{names} {action.argument}".rstrip(), action.title, action.also))
    return entries


def write_entry(entry: HelpEntry, columns: int) -> Content:
    """Return an entry in two columns. The description starts below a key that is too long."""
    if columns > 50:
        indent = _KEY_COLUMN
    else:
        indent = _NARROW_KEY_COLUMN
    lines = textwrap.wrap(entry.description, max(10, columns - indent)) or [""]
    text = entry.key
    if len(text) < indent:
        text += " " * (indent - len(text)) + lines.pop(0)
    content = Content(f"\n{' ' * indent}".join([text, *lines]))
    return content.stylize("$accent", 0, len(entry.key))


class HelpScreen(ModalScreen[None]):
    """List of keys and commands."""

    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("help"),
        # The application's keys do not work in a modal screen, but the help key should close it.
        Binding(ACTIONS["app.help"].keys, "leave", show=False, id="app.help"),
    ]

    def __init__(self, sections: list[HelpSection], back_key: str) -> None:
        super().__init__()
        self._back_key = back_key
        self._filter = ""
        self._bodies = [
            (section, Static(section.heading, markup=False), Static(markup=False))
            for section in sections
        ]
        self._nothing_found = Static(_NOTHING_FOUND, markup=False)

    def compose(self) -> ComposeResult:
        """Lay out the lists, commands in a column of their own."""
        with VerticalScroll(id="help") as box:
            box.border_subtitle = " · ".join(
                filter(None, ("up, down scroll", f"{self._back_key} back".strip()))
            )
            yield self._nothing_found
            with Container(id="help-columns"):
                for is_commands in (False, True):
                    with Vertical(classes="help-column"):
                        for section, heading, body in self._bodies:
                            if section.is_commands == is_commands:
                                heading.add_class("help-heading")
                                yield heading
                                yield body

    def on_resize(self) -> None:
        """Wrap the entries to the width."""
        self._show()

    on_mount = on_resize

    def _show(self) -> None:
        """Show the entries that have the typed words."""
        columns = self.app.size.width - _FRAME_COLUMNS
        if self.app.size.width >= TWO_COLUMNS_FROM:
            columns = columns // 2 - _GAP_COLUMNS
        columns = min(_MAX_COLUMNS, columns)

        words = self._filter.casefold().split()
        n_shown = 0
        for section, heading, body in self._bodies:
            entries = [entry for entry in section.entries if entry.has_words(words)]
            heading.display = body.display = bool(entries)
            body.update(Content("\n").join(write_entry(entry, columns) for entry in entries))
            n_shown += len(entries)
        self._nothing_found.display = bool(words) and not n_shown

        title = "Help · type to filter"
        if self._filter:
            title = f"Help: {self._filter}_"
        self.query_one("#help").border_title = Content(title)

    def on_key(self, event: events.Key) -> None:
        """Edit the filter."""
        if event.key in self.active_bindings:
            return
        if event.key == "backspace":
            self._type(self._filter[:-1])
        elif event.is_printable and event.character:
            self._type((self._filter + event.character)[:_MAX_FILTER_CHARS])
        else:
            return
        event.stop()
        event.prevent_default()

    def _type(self, text: str) -> None:
        box = self.query_one("#help")
        box.styles.min_height = box.outer_size.height  # the frame stays while the list shrinks
        self._filter = text
        self._show()

    def action_leave(self) -> None:
        """Clear the filter, or go back."""
        if self._filter:
            self._type("")
        else:
            dismiss_once(self)

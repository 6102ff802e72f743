"""The help screen: keys and commands from the table of actions, those of the focus first."""

from __future__ import annotations

import textwrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from app.tui.actions import ACTIONS, FIRST_NEEDED, Action, commands
from app.tui.bindings import bindings
from app.tui.keymap import Keymap, show_key
from app.tui.textual_hacks import dismiss_once
from app.tui.widgets.prompt import Prompt

Entry = tuple[str, str]
"""Key or command with its description."""

_HEADINGS = {
    "prompt": "In the prompt",
    "message": "On this message",
    "chat": "In the chat",
    "app": "Everywhere",
}
COMMANDS = "Commands to type in the prompt"
_PROMPT_ENTRIES = [("Up, Down", "Previous and next message, in an empty prompt")]
_MAX_COLUMNS = 74
_FRAME_COLUMNS = 6
_GAP_COLUMNS = 2
TWO_COLUMNS_FROM = 120
"""Width of the screen from which there are two columns, as in the style sheet."""
_KEY_COLUMN = 21
_NARROW_KEY_COLUMN = 15


def key_entries(scope: str, keymap: Keymap) -> list[Entry]:
    """Return the actions of a scope that have keys."""
    entries = [
        (keymap.key_names(action_id), action.title)
        for action_id, action in ACTIONS.items()
        if action.scope == scope and keymap.keys_of(action_id)
    ]
    if scope == "prompt":
        entries += _PROMPT_ENTRIES
    return entries


def help_sections(screen: Screen[object], keymap: Keymap) -> list[tuple[str, list[Entry]]]:
    """Return headings and entries: keys of the focused widget first, commands last."""
    is_prompt = isinstance(screen.focused, Prompt)
    sections: list[tuple[str, list[Entry]]] = []
    if is_prompt:
        essentials = [
            (keymap.key_names(action_id), ACTIONS[action_id].title)
            for action_id in FIRST_NEEDED
            if keymap.keys_of(action_id)
        ]
        sections.append(("Start here", essentials))
    sections += [
        (_HEADINGS.get(scope, "On this screen"), key_entries(scope, keymap))
        for scope in _active_scopes(screen, is_prompt)
    ]
    sections.append(("More keys", _textual_keys(screen)))
    sections.append((COMMANDS, [_command_entry(action) for action in commands()]))
    return [(heading, entries) for heading, entries in sections if entries]


def _active_scopes(screen: Screen[object], is_prompt: bool) -> list[str]:
    """Return the scopes whose keys work now, the one nearest to the focus first."""
    scopes = ["prompt"] if is_prompt else []
    for active in screen.active_bindings.values():
        scope = (active.binding.id or "").partition(".")[0]
        if scope not in ("", "app", *scopes):
            scopes.append(scope)
    scopes.insert(1, "app")
    return scopes


def _textual_keys(screen: Screen[object]) -> list[Entry]:
    """Return keys of Textual's own widgets, which are not in the table of actions."""
    bindings = [active.binding for active in screen.active_bindings.values()]
    return [
        (show_key(binding.key), binding.description)
        for binding in bindings
        if not binding.id and binding.description and binding.show and not binding.system
    ]


def _command_entry(action: Action) -> Entry:
    names = ", ".join(f"/{name}" for name in action.names)
    return f"{names} {action.argument}".rstrip(), action.title


def write_entry(entry: Entry, columns: int) -> Content:
    """Return an entry in two columns. The description starts below a key that is too long."""
    key, description = entry
    if columns > 50:
        indent = _KEY_COLUMN
    else:
        indent = _NARROW_KEY_COLUMN
    lines = textwrap.wrap(description, max(10, columns - indent)) or [""]
    text = key
    if len(key) < indent:
        text += " " * (indent - len(key)) + lines.pop(0)
    return Content(f"\n{' ' * indent}".join([text, *lines])).stylize("$accent", 0, len(key))


class HelpScreen(ModalScreen[None]):
    """List of keys and commands."""

    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("help"),
        # The application's keys do not work in a modal screen, but the help key should close it.
        Binding(ACTIONS["app.help"].keys, "leave", show=False, id="app.help"),
    ]

    def __init__(self, sections: list[tuple[str, list[Entry]]], back_key: str) -> None:
        super().__init__()
        self._back_key = back_key
        self._entries = [(heading, entries, Static(markup=False)) for heading, entries in sections]

    def compose(self) -> ComposeResult:
        """Lay out the lists, commands in a column of their own."""
        with VerticalScroll(id="help") as box:
            box.border_title = "Help"
            box.border_subtitle = " · ".join(
                filter(None, ("up, down scroll", f"{self._back_key} back".strip()))
            )
            with Container(id="help-columns"):
                for is_commands in (False, True):
                    with Vertical(classes="help-column"):
                        for heading, _, body in self._entries:
                            if (heading == COMMANDS) == is_commands:
                                yield Static(heading, markup=False, classes="help-heading")
                                yield body

    def on_resize(self) -> None:
        """Wrap the entries to the width."""
        columns = self.app.size.width - _FRAME_COLUMNS
        if self.app.size.width >= TWO_COLUMNS_FROM:
            columns = columns // 2 - _GAP_COLUMNS
        columns = min(_MAX_COLUMNS, columns)
        for _, entries, body in self._entries:
            body.update(Content("\n").join(write_entry(entry, columns) for entry in entries))

    on_mount = on_resize
    action_leave = dismiss_once

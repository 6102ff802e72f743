"""Keys and commands, read from the table of actions; what has the focus comes first."""

from __future__ import annotations

import textwrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from app.tui.actions import ACTIONS, FIRST_NEEDED, commands
from app.tui.bindings import bindings
from app.tui.keymap import Keymap, show_key
from app.tui.textual_hacks import dismiss_once
from app.tui.widgets.prompt import Prompt

Entry = tuple[str, str]
"""A key or command, and its description."""

_HEADINGS = {
    "prompt": "At the prompt",
    "message": "On this message",
    "chat": "In the chat",
    "app": "Everywhere",
}
COMMANDS = "Commands, typed at the prompt of the chat"
_PROMPT_ENTRIES = [("Up, Down", "Recall what was sent, from an empty prompt")]
_WIDEST = 74
_FRAME_COLUMNS = 6
_GAP_COLUMNS = 2
TWO_COLUMNS_FROM = 120
"""Least width in columns that the style sheets call wide."""
_KEY_COLUMN = 21
_NARROW_KEY_COLUMN = 15


def key_entries(scope: str, keymap: Keymap) -> list[Entry]:
    """Return the actions of a scope that have keys."""
    entries = [
        (keymap.shown_keys(action_id), action.title)
        for action_id, action in ACTIONS.items()
        if action.scope == scope and keymap.keys_of(action_id)
    ]
    return [*entries, *(_PROMPT_ENTRIES if scope == "prompt" else [])]


def help_sections(screen: Screen[object], keymap: Keymap) -> list[tuple[str, list[Entry]]]:
    """Return headings and entries: what the focused widget does, what leads to other screens, and
    the rest."""
    bound = (
        (active.binding.id or "").partition(".")[0] for active in screen.active_bindings.values()
    )
    here = ["prompt", *bound] if isinstance(screen.focused, Prompt) else bound
    # Those whose keys mean something now, the nearest to the focus first.
    scopes = list(dict.fromkeys(scope for scope in here if scope not in ("", "app")))
    scopes.insert(1, "app")
    first = [
        (keymap.shown_keys(one), ACTIONS[one].title) for one in FIRST_NEEDED if keymap.keys_of(one)
    ]
    if isinstance(screen.focused, Prompt):
        sections = [("Ten to begin with", first)]
    else:
        sections = []
    sections += [
        (_HEADINGS.get(scope, "On this screen"), key_entries(scope, keymap)) for scope in scopes
    ]
    # in no table
    own = [one.binding for one in screen.active_bindings.values() if not one.binding.id]
    more = [
        (show_key(one.key), one.description)
        for one in own
        if one.description and not one.system and one.show
    ]
    sections.append(("More keys here", more))
    written = [
        (f"{', '.join(f'/{name}' for name in a.names)} {a.argument}".rstrip(), a.title)
        for a in commands()
    ]
    sections.append((COMMANDS, written))
    return [(heading, entries) for heading, entries in sections if entries]


def write_entry(entry: Entry, columns: int) -> Content:
    """Write one entry in two columns, the key in a colour; what does not fit next to a long one
    goes below it."""
    first, second = entry
    if columns > 50:
        indent = _KEY_COLUMN
    else:
        indent = _NARROW_KEY_COLUMN
    lines = textwrap.wrap(second, max(10, columns - indent)) or [""]
    text = first
    if len(first) < indent:
        text += " " * (indent - len(first)) + lines.pop(0)
    return Content(f"\n{' ' * indent}".join([text, *lines])).stylize("$accent", 0, len(first))


class HelpScreen(ModalScreen[None]):
    """Lists what can be done; any of the usual keys closes it."""

    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("help"),
        # Below a modal screen the application's keys are silent, and the key that opened this
        # should close it.
        Binding(ACTIONS["app.help"].keys, "leave", show=False, id="app.help"),
    ]

    def __init__(self, sections: list[tuple[str, list[Entry]]], back_key: str) -> None:
        super().__init__()
        self._back_key = back_key
        self._entries = [(heading, entries, Static(markup=False)) for heading, entries in sections]

    def compose(self) -> ComposeResult:
        """Lay out the lists."""
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
        """Fill in the lines, broken where the room ends."""
        width = self.app.size.width - _FRAME_COLUMNS
        columns = min(
            _WIDEST, width // 2 - _GAP_COLUMNS if self.app.size.width >= TWO_COLUMNS_FROM else width
        )
        for _, entries, body in self._entries:
            body.update(Content("\n").join(write_entry(entry, columns) for entry in entries))

    on_mount = on_resize
    action_leave = dismiss_once

"""Keys and commands, read from the table of actions."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from app.actions import ACTIONS, commands

_KEY_COLUMN = 29


def key_lines() -> list[str]:
    """Return one line for each action that has keys."""
    shown = ((action.keys.replace(",", ", "), action.title) for action in ACTIONS.values() if action.keys)
    lines = [f"{keys:<{_KEY_COLUMN}} {title}" for keys, title in shown]
    lines.append(f"{'up, down':<{_KEY_COLUMN}} Recall what was sent, from an empty prompt")
    return lines


def command_lines() -> list[str]:
    """Return one line for each slash command."""
    lines = []
    for action in commands():
        usage = " ".join([", ".join(f"/{name}" for name in (action.command, *action.aliases)), action.argument])
        lines.append(f"{usage.rstrip():<{_KEY_COLUMN}} {action.title}")
    return lines


class HelpScreen(ModalScreen[None]):
    """Lists what can be done; any of the usual keys closes it."""

    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q,enter", "dismiss", "Back", show=False)]

    def compose(self) -> ComposeResult:
        """Lay out the two lists."""
        keys, typed = "\n".join(key_lines()), "\n".join(command_lines())
        with VerticalScroll(id="help") as box:
            box.border_title = "Help"
            box.border_subtitle = "Esc back"
            yield Static(Content("Keys"), markup=False, classes="help-heading")
            yield Static(Content(keys), markup=False)
            yield Static(Content("Commands, typed at the prompt"), markup=False, classes="help-heading")
            yield Static(Content(typed), markup=False)

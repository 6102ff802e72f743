"""Choosing the colours: every theme by name, tried on the running screen as the cursor moves over
it."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.tui.bindings import bindings
from app.tui.keymap import Keymap
from app.tui.textual_hacks import Options, dismiss_once

OWN_PREFIX = "jalopy-"


class ThemePicker(ModalScreen[str | None]):
    """Lists the themes; dismissed with the name of the chosen one, or with None and the colours as
    they were."""

    CSS_PATH = "theme_picker.tcss"
    BINDINGS = bindings("theme")
    AUTO_FOCUS = "OptionList"

    def __init__(self, keymap: Keymap) -> None:
        super().__init__()
        self._keymap = keymap
        self._before = self.app.theme
        # Our own before Textual's, each by name.
        self._names = sorted(
            self.app.available_themes, key=lambda name: (not name.startswith(OWN_PREFIX), name)
        )

    def compose(self) -> ComposeResult:
        """Lay out the list, the present theme first under the cursor."""
        lines = []
        for name in self._names:
            theme = self.app.available_themes[name]
            if theme.ansi:
                kind = "16 colours"
            elif theme.dark:
                kind = "dark"
            else:
                kind = "light"
            lines.append(Option(Content(f"{name:<24} {kind}")))
        picker = Options(*lines, markup=False)
        if self._before in self._names:
            picker.highlighted = self._names.index(self._before)
        else:
            picker.highlighted = 0
        picker.border_title = "Colours"
        leave = self._keymap.hint("theme.leave", "undoes")
        # that key is Textual's own
        picker.border_subtitle = " · ".join(filter(None, ("Enter keeps", leave)))
        yield picker

    @on(OptionList.OptionHighlighted)
    def preview(self, event: OptionList.OptionHighlighted) -> None:
        """Show everything in these colours."""
        self.app.theme = self._names[event.option_index]

    @on(OptionList.OptionSelected)
    def keep(self, event: OptionList.OptionSelected) -> None:
        """Keep the chosen theme."""
        dismiss_once(self, self._names[event.option_index])

    def action_leave(self) -> None:
        """Go back to the colours there were."""
        self.app.theme = self._before
        dismiss_once(self, None)

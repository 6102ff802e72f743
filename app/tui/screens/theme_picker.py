"""The theme picker: a list of themes, each tried on the running screen as the cursor reaches it."""

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
    """List of themes; dismissed with the chosen name, or with None and the previous colours."""

    CSS_PATH = "theme_picker.tcss"
    BINDINGS = bindings("theme")
    AUTO_FOCUS = "OptionList"

    def __init__(self, keymap: Keymap) -> None:
        super().__init__()
        self._keymap = keymap
        self._previous_theme = self.app.theme
        # Jalopy's themes come before Textual's.
        self._names = sorted(
            self.app.available_themes, key=lambda name: (not name.startswith(OWN_PREFIX), name)
        )

    def compose(self) -> ComposeResult:
        """Lay out the list with the cursor on the present theme."""
        lines = []
        for name in self._names:
            theme = self.app.available_themes[name]
            if theme.ansi:
                brightness = "16 colours"
            elif theme.dark:
                brightness = "dark"
            else:
                brightness = "light"
            lines.append(Option(Content(f"{name:<24} {brightness}")))
        picker = Options(*lines, markup=False)
        if self._previous_theme in self._names:
            picker.highlighted = self._names.index(self._previous_theme)
        else:
            picker.highlighted = 0
        picker.border_title = "Colours"
        leave = self._keymap.hint("theme.leave", "cancel")
        # Enter is Textual's own key for a list.
        picker.border_subtitle = " · ".join(filter(None, ("Enter choose", leave)))
        yield picker

    @on(OptionList.OptionHighlighted)
    def preview(self, event: OptionList.OptionHighlighted) -> None:
        """Show the highlighted theme."""
        self.app.theme = self._names[event.option_index]

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        """Use the chosen theme."""
        dismiss_once(self, self._names[event.option_index])

    def action_leave(self) -> None:
        """Restore the previous theme."""
        self.app.theme = self._previous_theme
        dismiss_once(self, None)

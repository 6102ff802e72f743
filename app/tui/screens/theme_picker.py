"""The theme picker: a list of themes, each tried on the running screen as the cursor reaches it."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.screen import ModalScreen
from textual.theme import Theme
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.tui.bindings import bindings
from app.tui.drawing.lines import line, muted
from app.tui.keymap import Keymap
from app.tui.textual_hacks import Options, dismiss_once
from app.tui.widgets.figure_lines import content_of

OWN_PREFIX = "jalopy-"
_GROUPS = ("Dark", "Light", "For 16 colours")


class ThemePicker(ModalScreen[str | None]):
    """List of themes; dismissed with the chosen name, or with None and the previous colours."""

    CSS_PATH = "theme_picker.tcss"
    BINDINGS = bindings("theme")
    AUTO_FOCUS = "OptionList"

    def __init__(self, keymap: Keymap) -> None:
        super().__init__()
        self._keymap = keymap
        self._previous_theme = self.app.theme
        self._names: list[str | None] = []
        """Theme of each row; None for the heading of a group."""

    def compose(self) -> ComposeResult:
        """Lay out the list with the cursor on the present theme."""
        # In each group, Jalopy's themes come before Textual's.
        names = sorted(
            self.app.available_themes, key=lambda name: (not name.startswith(OWN_PREFIX), name)
        )
        rows = []
        for group in _GROUPS:
            self._names.append(None)
            rows.append(Option(content_of(line(muted(group))), disabled=True))
            for name in names:
                if _group_of(self.app.available_themes[name]) == group:
                    self._names.append(name)
                    rows.append(Option(Content(f" {name}")))
        picker = Options(*rows, markup=False)
        if self._previous_theme in self._names:
            picker.highlighted = self._names.index(self._previous_theme)
        else:
            picker.highlighted = 1
        picker.border_title = "Colours"
        leave = self._keymap.hint("theme.leave", "cancel")
        # Enter is Textual's own key for a list.
        picker.border_subtitle = " · ".join(filter(None, ("Enter choose", leave)))
        yield picker

    @on(OptionList.OptionHighlighted)
    def preview(self, event: OptionList.OptionHighlighted) -> None:
        """Show the highlighted theme."""
        name = self._names[event.option_index]
        if name is not None:
            self.app.theme = name

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        """Use the chosen theme."""
        dismiss_once(self, self._names[event.option_index])

    def action_leave(self) -> None:
        """Restore the previous theme."""
        self.app.theme = self._previous_theme
        dismiss_once(self, None)


def _group_of(theme: Theme) -> str:
    """Return the heading above a theme."""
    if theme.ansi:
        return "For 16 colours"
    if theme.dark:
        return "Dark"
    return "Light"

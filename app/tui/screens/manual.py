"""The manual screen: a page of the manual, wrapped to the width of the terminal."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from app.program.manual import PageLine, lay_out
from app.tui.bindings import bindings
from app.tui.textual_hacks import dismiss_once

_FRAME_COLUMNS = 6


class ManualScreen(ModalScreen[None]):
    """Screen with a page of the manual.

    Args:
        text: text of the page.
        back_key: key that closes the screen.
    """

    CSS_PATH = "manual.tcss"
    BINDINGS = bindings("manual")
    AUTO_FOCUS = "#manual"

    def __init__(self, text: str, back_key: str) -> None:
        super().__init__()
        self._text = text
        self._back_key = back_key

    def compose(self) -> ComposeResult:
        """Lay out the page."""
        with VerticalScroll(id="manual") as box:
            box.border_title = "Manual"
            box.border_subtitle = " · ".join(
                filter(None, ("up, down scroll", f"{self._back_key} back".strip()))
            )
            yield Static(markup=False, id="manual-page")

    def on_resize(self) -> None:
        """Wrap the page to the width."""
        lines = lay_out(self._text, self.app.size.width - _FRAME_COLUMNS)
        body = self.query_one("#manual-page", Static)
        body.update(Content("\n").join(map(_content_of, lines)))

    on_mount = on_resize
    action_leave = dismiss_once


def _content_of(line: PageLine) -> Content:
    if line.is_heading:
        return Content(line.text).stylize("bold $primary")
    return Content(line.text)

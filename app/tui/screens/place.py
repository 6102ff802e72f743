"""The source screen: a passage of a document that a reply cites, with its surroundings."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from app.documents.citations import Citation
from app.tui.bindings import bindings
from app.tui.drawing.lines import EMPTY, line
from app.tui.keymap import Keymap
from app.tui.textual_hacks import dismiss_once
from app.tui.widgets.figure_lines import KeyLine, ScreenTitle

_ROWS_ABOVE = 2
"""Rows of preceding text above the passage."""


class PlaceScreen(ModalScreen[None]):
    """Screen with one of the passages that a reply cites."""

    CSS_PATH = "place.tcss"
    BINDINGS = bindings("place")
    AUTO_FOCUS = "#place"

    def __init__(self, places: Sequence[Citation], keymap: Keymap) -> None:
        super().__init__()
        self._places = places
        self._keymap = keymap
        self._index = 0

    def compose(self) -> ComposeResult:
        """Lay out title, lines and keys."""
        yield ScreenTitle("Source")
        with VerticalScroll(id="place"):
            for section in ("before", "lines", "after"):
                yield Static(markup=False, id=f"place-{section}")
        yield KeyLine()

    def on_mount(self) -> None:
        """Show the first passage."""
        self._show()

    def action_next(self) -> None:
        """Show the next passage, or the first one after the last."""
        self._index = (self._index + 1) % len(self._places)
        self._show()

    def _show(self) -> None:
        passage = self._places[self._index]
        n_passages = len(self._places)
        keys = [(self._keymap.first_key("place.leave"), "back"), ("arrows, PgUp, PgDn", "scroll")]
        state = EMPTY
        if n_passages > 1:
            keys.insert(0, (self._keymap.first_key("place.next"), "next source"))
            state = line(f"{self._index + 1} of {n_passages}")
        self.query_one(ScreenTitle).set_content(passage.shown, state)
        self.query_one(KeyLine).set_content(keys)

        number = passage.first - len(passage.before)
        width = len(str(passage.first + len(passage.lines) + len(passage.after)))
        sections = (
            ("before", "  ", passage.before),
            ("lines", "> ", passage.lines),
            ("after", "  ", passage.after),
        )
        for section, mark, texts in sections:
            rows = []
            for text in texts:
                label = f"{number:>{width}}  " if passage.first else ""
                rows.append(f"{mark}{label}{text}")
                number += 1
            body = self.query_one(f"#place-{section}", Static)
            body.display = bool(rows)
            body.update("\n".join(rows))
        self.call_after_refresh(self._scroll)

    def _scroll(self) -> None:
        top = self.query_one("#place-lines").virtual_region.y - _ROWS_ABOVE
        self.query_one("#place").scroll_to(y=max(0, top), animate=False)

    action_leave = dismiss_once
